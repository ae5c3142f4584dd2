package userspace

import (
	"errors"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Names of the sets, and of the chains that each table has.
const (
	setFrontends  = "frontends"   // frontend : chain of its verdict
	setNodePorts  = "nodeports"   // node port : the same
	setClusterIPs = "cluster-ips" // all ClusterIPs
	setRestricted = "restricted"  // frontend : chain of its source ranges

	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPostrouting = "postrouting"
	chainBridged     = "bridged"
	chainServices    = "services"
)

func frontendFields() []nfnetlink.Selector {
	return []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.L4Proto, nfnetlink.DestPort}
}

func sets() []nfnetlink.Set {
	f := frontendFields()
	return []nfnetlink.Set{
		{Name: setFrontends, Key: f, Verdicts: true},
		{Name: setNodePorts, Key: f[1:], Verdicts: true},
		{Name: setClusterIPs, Key: f[:1]},
		{Name: setRestricted, Key: f, Verdicts: true},
	}
}

// renderer says which objects a service port needs.
type renderer struct {
	options *Options
	// rules are those of all chains by their hash, for the last two nodes.
	rules [2]map[uint64]chainDefinition
}

var errSCTP = errors.New("SCTP is not carried: its connections have no place in sockets of TCP and UDP")

// Check implements [backends.Checker].
func (r *renderer) Check(_ *proxy.Node, port *proxy.ServicePort) error {
	if port.Name.Protocol == v1.ProtocolSCTP && slices.Contains(r.families(), familyOf(port.Name.Family)) {
		return errSCTP
	}
	return nil
}

// render is a [backends.Render].
func (r *renderer) render(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	if port == nil {
		r.rules[0], r.rules[1] = map[uint64]chainDefinition{}, r.rules[0]
		for _, fam := range r.families() {
			out = r.static(node, fam, out)
		}
		return out
	}
	fam := familyOf(port.Name.Family)
	if !slices.Contains(r.families(), fam) {
		return out
	}
	proto := protocolNumber(port.Name.Protocol)
	for i := range port.Frontends {
		f := &port.Frontends[i]
		k := key{kind: kindFrontend, fam: fam, proto: proto, addr: f.Addr}
		if f.Kind == proxy.NodePort {
			k.addr = netip.AddrPortFrom(netip.Addr{}, f.Addr.Port())
		}
		out = append(out, object{Key: k, Value: value{chain: r.verdict(f)}})
		if f.Kind == proxy.ClusterIP {
			out = append(out, object{Key: key{kind: kindClusterIP, fam: fam, addr: netip.AddrPortFrom(f.Addr.Addr(), 0)}})
		}
		if f.Restricted && f.Kind != proxy.NodePort {
			out = restriction(k, f.AllowedSources, out)
		}
	}
	return out
}

func (r *renderer) families() []nfnetlink.Family {
	if len(r.options.Families) == 0 {
		return []nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6}
	}
	var all []nfnetlink.Family
	for _, f := range r.options.Families {
		all = append(all, familyOf(f))
	}
	return all
}

// verdict names the chain of what becomes of a frontend's traffic.
func (r *renderer) verdict(f *proxy.Frontend) string {
	return verdictChain(r.action(f.FromInside.Action), r.action(f.FromOutside.Action))
}

func (r *renderer) action(a proxy.Action) string {
	switch {
	case a == proxy.Forward:
		return "capture"
	case a == proxy.Reject && r.options.Hooks.FirstConnection != nil:
		return "capture" // it is to wait for endpoints
	}
	return a.String()
}

func actions() []string { return []string{"capture", "reject", "drop", "pass"} }

// verdictChain names the chain for traffic of which some comes from the inside
// of the cluster and some from outside.
func verdictChain(inside, outside string) string {
	if inside == outside {
		return "all-" + inside
	}
	return "inside-" + inside + "-outside-" + outside
}
