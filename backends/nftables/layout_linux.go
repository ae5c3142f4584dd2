package nftables

import (
	"fmt"
	"strconv"

	"github.com/google/nftables/expr"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// Names of the chains that every table has.
const (
	chainServices    = "services"
	chainRemember    = "remember"
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainInput       = "input"
	chainPostrouting = "postrouting"
	chainUnserved    = "unserved"

	chainUnservedPrerouting = "unserved-prerouting"
	chainUnservedOutput     = "unserved-output"
)

// Priorities of base chains, as other programs that translate addresses use them.
const (
	priorityDNAT = -100
	prioritySNAT = 100
)

// static appends the objects that a table has whatever the services are. All base chains
// are of type nat, which only the first packet of a connection traverses: all later
// packets cost nothing here.
func (r *renderer) static(node *proxy.Node, fam nfnetlink.Family, out []object) []object {
	out = append(out, object{Key: key{kind: kindTable, fam: fam}})
	for _, s := range fixedSets() {
		out = append(out, setObject(fam, &setDefinition{set: s, fixed: true}))
	}
	base := func(name string, rules func(*nft.Assembler)) object {
		at := r.options.baseChain(name)
		return r.chain(chainSpec{fam: fam, name: name, kind: kindBaseChain, details: strconv.Itoa(int(at.Priority)), base: at}, rules)
	}
	fixed := func(name string, kind kind, details string, rules func(*nft.Assembler)) object {
		return r.chain(chainSpec{fam: fam, name: name, kind: kind, details: details}, rules)
	}
	toServices := func(a *nft.Assembler) { a.Rule(a.Jump(chainServices)) }
	toUnserved := func(a *nft.Assembler) { a.Rule(a.Jump(chainUnserved)) }
	toRemember := func(a *nft.Assembler) { a.Rule(a.Translated(), a.Jump(chainRemember)) }
	return append(out,
		fixed(rejectChain, kindRejectChain, "", func(a *nft.Assembler) { a.Reject() }),
		fixed(chainServices, kindDispatchChain, fmt.Sprint(node.NodePorts), func(a *nft.Assembler) { dispatch(a, node) }),
		fixed(chainUnserved, kindDispatchChain, fmt.Sprint(node.ServiceCIDRs), func(a *nft.Assembler) { a.Unserved(setClusterIPs, node.ServiceCIDRs) }),
		fixed(chainRemember, kindDispatchChain, "", rememberDispatch),
		base(chainPrerouting, toServices),
		base(chainOutput, toServices),
		base(chainUnservedPrerouting, toUnserved),
		base(chainUnservedOutput, toUnserved),
		base(chainInput, func(a *nft.Assembler) {
			toRemember(a)
			a.Rule(a.Marked(expr.CmpOpNeq), a.ClearMark()) // the packet goes to a host-network endpoint
		}),
		base(chainPostrouting, func(a *nft.Assembler) {
			toRemember(a)
			a.Rule(a.Marked(expr.CmpOpNeq), a.ClearMark(), a.Masquerade())
			a.Rule(a.Translated(), hairpin(a), a.Masquerade())
		}))
}

// layout is the version of the rules that this package writes. Chains of another version,
// from an older or newer process, are replaced.
const layout = "6"

type chainSpec struct {
	fam  nfnetlink.Family
	name string
	kind kind
	// details identify what the rules depend on apart from name, kind, base and mark.
	details string
	base    nfnetlink.BaseChain
}

// chain returns the object of a chain.
func (r *renderer) chain(c chainSpec, rules func(*nft.Assembler)) object {
	return object{
		Key:     key{kind: c.kind, fam: c.fam, name: handleOf(c.name)},
		Value:   value{hash: nft.Hash(r.form, c.name, c.details)},
		Payload: &nft.Chain{Base: c.base, Mark: r.options.Identity.Mark, Rules: rules},
	}
}

// baseChains returns the base chains with their hooks and priorities.
func (o *Options) baseChains() [6]nfnetlink.Chain {
	nat := func(name string, hook nfnetlink.Hook, priority int32) nfnetlink.Chain {
		return nfnetlink.Chain{Name: name, Base: nfnetlink.BaseChain{Type: "nat", Hook: hook, Priority: priority}}
	}
	dnat, snat := priorityDNAT+o.Identity.Priority, prioritySNAT+o.Identity.Priority
	return [...]nfnetlink.Chain{
		nat(chainPrerouting, nfnetlink.Prerouting, dnat),
		nat(chainOutput, nfnetlink.Output, dnat),
		nat(chainInput, nfnetlink.Input, snat),
		nat(chainPostrouting, nfnetlink.Postrouting, snat),
		nat(chainUnservedPrerouting, nfnetlink.Prerouting, nft.PriorityUnserved),
		nat(chainUnservedOutput, nfnetlink.Output, nft.PriorityUnserved),
	}
}

// baseChain returns the hook and priority of a base chain; the zero value for other
// chains.
func (o *Options) baseChain(name string) nfnetlink.BaseChain {
	for _, c := range o.baseChains() {
		if c.Name == name {
			return c.Base
		}
	}
	return nfnetlink.BaseChain{}
}

// dispatch writes the chain that looks up the frontend of every new connection.
func dispatch(a *nft.Assembler, node *proxy.Node) {
	a.Rule(a.VerdictMap(setRestrictions, false))
	a.Rule(a.VerdictMap(setServices, false))
	a.NodePorts(node.NodePorts, setNodePorts)
}

// rememberDispatch writes the chain that looks up the frontend of a translated connection
// again, by its original destination, to store the endpoint of the client. The endpoint is
// known only after the translation. The rules match each protocol, because nft could not
// load its listing of them otherwise.
func rememberDispatch(a *nft.Assembler) {
	for _, proto := range [...]uint8{ipaddr.TCP, ipaddr.UDP, ipaddr.SCTP} {
		a.Rule(a.ProtocolIs(proto), originalVerdictMap(a, setRecorders, false))
		a.Rule(a.ProtocolIs(proto), originalNodePortHasEndpoint(a), originalVerdictMap(a, setNodePortRecorders, true))
	}
}
