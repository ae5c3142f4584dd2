package nftables

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// Names of the chains that every table has.
const (
	chainServices    = "services"
	chainRemember    = "remember"
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainInput       = "input"
	chainPostrouting = "postrouting"
)

// Priorities of base chains, as other programs that translate addresses use them.
const (
	priorityDNAT = -100
	prioritySNAT = 100
)

// static appends what a table holds whatever the services are. All base chains
// are of type nat, which the kernel asks about the first packet of a connection
// only: everything after it costs nothing here.
func (p *page) static(fam family, out []object) []object {
	out = append(out, object{Key: key{kind: kindTable, fam: fam}})
	for _, s := range fixedSets() {
		out = append(out, p.setObject(fam, setDefinition{set: s, lasting: true}))
	}
	base := func(name string, build func(*assembler)) object {
		place := p.options.baseChain(name)
		return p.chainObject(chainSpec{fam: fam, name: name, level: levelBase, lasting: true, details: strconv.Itoa(int(place.Priority)),
			base: &place}, build)
	}
	fixed := func(name string, level uint8, details string, build func(*assembler)) object {
		return p.chainObject(chainSpec{fam: fam, name: name, level: level, details: details, lasting: true}, build)
	}
	toServices := func(a *assembler) { a.rule(a.jump(chainServices)) }
	toRemember := func(a *assembler) { a.rule(a.translated(), a.jump(chainRemember)) }
	return append(out,
		fixed(rejectChain, levelReject, "", func(a *assembler) { a.rule(a.reject()) }),
		fixed(chainServices, levelDispatch, p.dispatchDetails(), p.dispatch),
		fixed(chainRemember, levelDispatch, "", (*assembler).rememberDispatch),
		base(chainPrerouting, toServices),
		base(chainOutput, toServices),
		base(chainInput, func(a *assembler) {
			toRemember(a)
			a.rule(a.marked(), a.clearMark()) // for an endpoint on the node itself
		}),
		base(chainPostrouting, func(a *assembler) {
			toRemember(a)
			a.rule(a.marked(), a.clearMark(), a.masquerade())
			a.rule(a.translated(), a.sourceAndDestinationInSet(setHairpins), a.masquerade())
		}))
}

// baseChain gives the place of a chain in the kernel's path of packets; the zero
// value for one that has none.
func (o *Options) baseChain(name string) nfnetlink.BaseChain {
	c := nfnetlink.BaseChain{Type: "nat"}
	switch name {
	case chainPrerouting:
		c.Hook, c.Priority = nfnetlink.Prerouting, priorityDNAT
	case chainOutput:
		c.Hook, c.Priority = nfnetlink.Output, priorityDNAT
	case chainInput:
		c.Hook, c.Priority = nfnetlink.Input, prioritySNAT
	case chainPostrouting:
		c.Hook, c.Priority = nfnetlink.Postrouting, prioritySNAT
	default:
		return nfnetlink.BaseChain{}
	}
	c.Priority += o.Identity.Priority
	return c
}

// dispatch writes the chain in which every new connection is looked up.
func (p *page) dispatch(a *assembler) {
	a.rule(a.verdictMap(setRestrictions, false))
	a.rule(a.verdictMap(setServices, false))
	p.nodePortRules(a)
	// Nothing but the ports of Services is served at ClusterIPs, and nothing
	// at all at addresses that no Service has.
	a.rule(a.destinationInSet(setClusterIPs), a.reject())
	for _, cidr := range p.node.ServiceCIDRs {
		if familyOf(ipaddr.FamilyOf(cidr.Addr())) == a.fam {
			a.rule(a.destinationIn(cidr), a.drop())
		}
	}
}

// dispatchDetails says what of the node goes into the chain.
func (p *page) dispatchDetails() string {
	return fmt.Sprint(p.node.NodePorts, p.node.ServiceCIDRs)
}

func (p *page) nodePortRules(a *assembler) {
	if p.node.NodePorts.All {
		a.rule(a.destinationNotIn(a.fam.loopback()), a.destinationIsLocal(), a.verdictMap(setNodePorts, true))
		return
	}
	for _, at := range p.node.NodePorts.Prefixes {
		if familyOf(ipaddr.FamilyOf(at.Addr())) == a.fam {
			a.rule(a.destinationNotIn(a.fam.loopback()), a.destinationIn(at), a.destinationIsLocal(), a.verdictMap(setNodePorts, true))
		}
	}
}

func (f family) loopback() netip.Prefix {
	if f == ipv6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}

// rememberDispatch writes the chain in which the frontend of a translated
// connection is looked up again, by the destination it had, to note which
// endpoint its client has got. That is known only now. The kernel is asked for
// ports of a known protocol, because nft could not read the rule back otherwise.
func (a *assembler) rememberDispatch() {
	for _, proto := range [...]uint8{6, 17, 132} {
		a.rule(a.protocolIs(proto), a.originalVerdictMap(setRecorders, false))
		a.rule(a.protocolIs(proto), a.originalNodePortHasEndpoint(), a.originalVerdictMap(setNodePortRecorders, true))
	}
}
