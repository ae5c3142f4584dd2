package addresses

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Key names an address, or a listener at one.
type Key struct {
	addr netip.Addr
	// port and protocol belong to a listener; protocol is empty for an address.
	port     uint16
	protocol v1.Protocol
}

// Value is empty: a key says everything.
type Value struct{}

type (
	// Object is an object as it is rendered.
	Object = backends.Object[Key, Value]
	op     = backends.Op[Key, Value]
)

// Rank implements [backends.Key]: an address exists before its listeners.
func (k Key) Rank() int {
	if k.isAddress() {
		return 0
	}
	return 1
}

// Shared implements [backends.Key]. A listener serves whichever service port has the frontend: it
// may be the external IP of one, and the node port of another.
func (Key) Shared() bool { return true }

func (k Key) isAddress() bool { return k.protocol == "" }

func (k Key) at() netip.AddrPort { return netip.AddrPortFrom(k.addr, k.port) }

// Render implements [backends.Render].
func (c *Capture) Render(env backends.Env, port *proxy.ServicePort, out []Object) []Object {
	if port == nil || !c.serves(port.Name.Family) {
		return out
	}
	for i := range port.Frontends {
		f := &port.Frontends[i]
		pod, node, outside := f.Routes()
		listen := listens(c.AwaitEndpoints, pod, node, outside)
		if f.Kind != proxy.NodePort {
			out = append(out, Object{Key: Key{addr: f.Addr.Addr()}})
			if listen {
				out = append(out, Object{Key: Key{f.Addr.Addr(), f.Addr.Port(), port.Name.Protocol}})
			}
			continue
		}
		for _, a := range env.Node.Addresses {
			if listen && ipaddr.FamilyOf(a) == port.Name.Family && env.Node.NodePorts.Contains(a) {
				out = append(out, Object{Key: Key{a, f.Addr.Port(), port.Name.Protocol}})
			}
		}
	}
	return out
}

// listens reports whether a frontend with some routes has a listener. If it rejects all clients, the
// system does that, and sooner. Clients that are dropped must not reach another program of the node.
func listens(awaitEndpoints bool, routes ...proxy.TrafficRoute) bool {
	for _, r := range routes {
		switch r.Action {
		case proxy.Forward, proxy.Drop:
			return true
		case proxy.Reject:
			if awaitEndpoints {
				return true
			}
		case proxy.Pass:
		}
	}
	return false
}
