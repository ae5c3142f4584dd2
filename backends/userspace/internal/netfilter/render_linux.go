package netfilter

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// Names of the sets.
const (
	setFrontends  = "frontends"   // frontend : chain of its verdict
	setNodePorts  = "nodeports"   // node port : the same
	setClusterIPs = "cluster-ips" // all ClusterIPs
	setRestricted = "restricted"  // frontend : chain of its source ranges
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

// renderer renders the objects of service ports.
type renderer struct {
	Config

	// unusable are the families that the node could not use when that was looked up last.
	unusable []v1.IPFamily
}

// Render is a [backends.Render].
func (r *renderer) Render(env backends.Env, port *proxy.ServicePort, out []Object) []Object {
	if port == nil {
		for _, f := range r.served() {
			out = r.static(env.Node, f, out)
		}
		return out
	}
	if !r.serves(port.Name.Family) {
		return out
	}
	fam, protocol := nft.FamilyOf(port.Name.Family), ipaddr.ProtocolNumber(port.Name.Protocol)
	for i := range port.Frontends {
		f := &port.Frontends[i]
		k := Key{kind: kindFrontend, fam: fam, protocol: protocol, addr: f.Addr}
		if f.Kind == proxy.NodePort {
			k.addr = netip.AddrPortFrom(netip.Addr{}, f.Addr.Port())
		}
		out = append(out, Object{Key: k, Value: Value{chain: r.verdict(f)}})
		if f.Kind == proxy.ClusterIP {
			out = append(out, Object{Key: Key{kind: kindClusterIP, fam: fam, addr: netip.AddrPortFrom(f.Addr.Addr(), 0)}})
		}
		if f.Restricted && f.Kind != proxy.NodePort {
			out = r.restriction(k, f.AllowedSources, out)
		}
	}
	return out
}

// verdict returns the name of the chain that decides on a frontend's packets.
func (r *renderer) verdict(f *proxy.Frontend) string {
	return verdictChain(r.actionFor(f.FromInside.Action), r.actionFor(f.FromOutside.Action))
}

func actions() []proxy.Action {
	return []proxy.Action{proxy.Forward, proxy.Reject, proxy.Drop, proxy.Pass}
}

// verdictChain returns the name of the chain that applies one action to packets from inside,
// and another one to packets from outside.
func verdictChain(inside, outside proxy.Action) string {
	name := func(a proxy.Action) string {
		if a == proxy.Forward {
			return "capture"
		}
		return a.String()
	}
	if inside == outside {
		return "all-" + name(inside)
	}
	return "inside-" + name(inside) + "-outside-" + name(outside)
}
