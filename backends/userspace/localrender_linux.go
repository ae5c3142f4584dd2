package userspace

import (
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// What becomes of a frontend with local routes.
const (
	localCapture uint64 = iota + 1
	localRefuse
	localDrop
)

// renderLocal is a [backends.Render] for local routes.
func (r *renderer) renderLocal(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	if port == nil {
		return r.staticLocal(node, out)
	}
	fam := familyOf(port.Name.Family)
	if !slices.Contains(r.families(), fam) {
		return out
	}
	for i := range port.Frontends {
		f := &port.Frontends[i]
		verdict := localVerdict(r.action(f.FromInside.Action), r.action(f.FromOutside.Action))
		if verdict == 0 {
			continue
		}
		k := key{kind: kindFrontend, fam: fam, proto: protocolNumber(port.Name.Protocol), addr: f.Addr}
		out = append(out, object{Key: k, Value: value{hash: verdict}})
		if f.Kind == proxy.NodePort {
			continue
		}
		at := key{kind: kindExternal, fam: fam, addr: netip.AddrPortFrom(f.Addr.Addr(), 0)}
		if f.Kind == proxy.ClusterIP {
			at.kind = kindClusterIP
		}
		out = append(out, object{Key: at})
		at.kind = kindLocal
		out = append(out, object{Key: at, Value: value{chain: addressOf(node, fam)}})
	}
	return out
}

// localVerdict gives what becomes of a frontend before anybody knows who asks; 0 if
// it is nobody's business. Where that makes a difference, the engine decides.
func localVerdict(inside, outside string) uint64 {
	switch {
	case inside == "pass" && outside == "pass":
		return 0
	case inside == "reject" && outside == "reject":
		return localRefuse
	case inside != "capture" && outside != "capture":
		return localDrop
	}
	return localCapture
}

// addressOf gives the address from which the node talks to frontends, if it is known.
func addressOf(node *proxy.Node, fam nfnetlink.Family) string {
	for _, a := range node.Addresses {
		if familyOfAddr(a) == fam {
			return a.String()
		}
	}
	return ""
}

func (r *renderer) staticLocal(node *proxy.Node, out []object) []object {
	for _, fam := range r.families() {
		is := func(p netip.Prefix) bool { return familyOf(ipaddr.FamilyOf(p.Addr())) == fam }
		for _, p := range node.ServiceCIDRs {
			if is(p) {
				out = append(out, object{Key: key{kind: kindBlackhole, fam: fam, source: p.Masked()}})
			}
		}
		at := node.NodePorts.Prefixes
		if node.NodePorts.All {
			at = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
		}
		for _, p := range at {
			if is(p) && !p.Addr().IsLoopback() {
				out = append(out, object{Key: key{kind: kindNodePorts, fam: fam, source: p.Masked()}})
			}
		}
	}
	return out
}
