package localroutes

import (
	"net/netip"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// kind is the kind of an object, in the order of creation: the objects of an address exist
// before the route that lets packets to it in.
type kind uint8

const (
	kindClusterIP kind = iota // an address of which all ports are captured
	kindFrontend
	kindExternal  // an address of a Service that the host may have, too
	kindNodePorts // a range of addresses that serve node ports
	kindLocal     // the route that makes an address local
	kindBlackhole // a route that drops packets to unused service addresses
)

// Key names one object.
type Key struct {
	kind kind
	// protocol and frontend name a frontend; a node port has the unspecified address.
	protocol uint8
	frontend netip.AddrPort
	// prefix is the address, or the range, of any other object.
	prefix netip.Prefix
}

// Value is the content of an object.
type Value struct {
	verdict verdict // of a frontend
	// source is the source address of a local route for packets of the node; it may be not
	// valid.
	source netip.Addr
}

type (
	// Object is an object as it is rendered.
	Object = backends.Object[Key, Value]
	op     = backends.Op[Key, Value]
)

// Rank implements [backends.Key].
func (k Key) Rank() int { return int(k.kind) }

// Shared implements [backends.Key].
func (k Key) Shared() bool {
	return k.kind == kindClusterIP || k.kind == kindExternal || k.kind == kindLocal
}

func (k Key) isRoute() bool { return k.kind == kindLocal || k.kind == kindBlackhole }

// atAddress names the object of a kind for one address.
func atAddress(k kind, a netip.Addr) Key {
	return Key{kind: k, prefix: netip.PrefixFrom(a, a.BitLen())}
}

// verdict is what happens to packets to a frontend.
type verdict uint8

const (
	pass verdict = iota // the backend does not handle them
	capture
	refuse
	drop
)

// Render is a [backends.Render].
func (c *Capture) Render(node *proxy.Node, port *proxy.ServicePort, out []Object) []Object {
	if port == nil {
		return c.static(node, out)
	}
	if !c.Serves(port.Name.Family) {
		return out
	}
	protocol := uint8(unix.IPPROTO_TCP)
	if port.Name.Protocol == v1.ProtocolUDP {
		protocol = unix.IPPROTO_UDP
	}
	for i := range port.Frontends {
		f := &port.Frontends[i]
		v := verdictOf(c.Action(f.FromInside.Action), c.Action(f.FromOutside.Action))
		if v == pass {
			continue
		}
		at := Key{kind: kindFrontend, protocol: protocol, frontend: f.Addr}
		out = append(out, Object{Key: at, Value: Value{verdict: v}})
		if f.Kind == proxy.NodePort {
			continue
		}
		owned := kindExternal
		if f.Kind == proxy.ClusterIP {
			owned = kindClusterIP
		}
		out = append(out,
			Object{Key: atAddress(owned, f.Addr.Addr())},
			Object{Key: atAddress(kindLocal, f.Addr.Addr()), Value: Value{source: sourceOf(node, port.Name.Family)}})
	}
	return out
}

// verdictOf decides on packets to a frontend before their origin is known. If one origin is
// forwarded, all are captured, and the engine decides; if the actions differ otherwise, all are
// dropped.
func verdictOf(inside, outside proxy.Action) verdict {
	switch {
	case inside == proxy.Forward || outside == proxy.Forward:
		return capture
	case inside != outside:
		return drop
	case inside == proxy.Pass:
		return pass
	case inside == proxy.Reject:
		return refuse
	}
	return drop
}

// sourceOf returns the address from which the node sends to frontends; not valid if the node
// has none of the family.
func sourceOf(node *proxy.Node, f v1.IPFamily) netip.Addr {
	for _, a := range node.Addresses {
		if ipaddr.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// static appends the objects that do not depend on Services.
func (c *Capture) static(node *proxy.Node, out []Object) []Object {
	for _, fam := range c.Served() {
		for _, p := range node.ServiceCIDRs {
			if ipaddr.FamilyOf(p.Addr()) == fam {
				out = append(out, Object{Key: Key{kind: kindBlackhole, prefix: p.Masked()}})
			}
		}
		at := node.NodePorts.Prefixes
		if node.NodePorts.All {
			at = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
		}
		for _, p := range at {
			if ipaddr.FamilyOf(p.Addr()) == fam && !p.Addr().IsLoopback() {
				out = append(out, Object{Key: Key{kind: kindNodePorts, prefix: p.Masked()}})
			}
		}
	}
	return out
}
