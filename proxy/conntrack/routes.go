package conntrack

import (
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// allowed are the endpoints of one service port to which existing flows may go on, by what decides about
// them: the action and the pool of a route. Nothing is computed before it is needed.
type allowed struct {
	port *proxy.ServicePort
	by   map[proxy.TrafficRoute]set[netip.AddrPort]
}

func newAllowed(p *proxy.ServicePort) *allowed {
	return &allowed{port: p, by: map[proxy.TrafficRoute]set[netip.AddrPort]{}}
}

// of returns the endpoints of one route.
func (k *allowed) of(r proxy.TrafficRoute) set[netip.AddrPort] {
	all, known := k.by[r]
	if known {
		return all
	}
	all = set[netip.AddrPort]{}
	add := func(e *endpoints.Endpoint) bool {
		all[e.Addr] = struct{}{}
		return true
	}
	if r.Action == proxy.Forward {
		for _, e := range k.port.Pool(r.Pool) {
			add(e)
		}
	}
	k.port.DrainingOf(r)(add)
	k.by[r] = all
	return all
}

// isUniform reports whether flows of all sources go to the same endpoints.
func isUniform(f *proxy.Frontend) bool {
	pod, node, outside := f.Routes()
	pod.Masquerade, node.Masquerade, outside.Masquerade = 0, 0, 0
	return pod == node && node == outside
}

// owner is the frontend that a flow is for: what [proxy.Route] says about it.
type owner struct {
	frontend *proxy.Frontend
	allowed  *allowed
}

// any reports whether the frontend allows the source of a flow, and is is true of its route. A flow does
// not say where it came in, so if only the interface tells pods from others, it is asked for the routes of both.
func (o *owner) any(f *flow, from *origins, is func(proxy.TrafficRoute) bool) bool {
	source := f.source.Addr()
	if !o.frontend.Allows(source) {
		return false
	}
	pod, node, outside := o.frontend.Routes()
	switch t := &from.node.LocalTraffic; {
	case t.Match(source, ""):
		return is(pod)
	case from.isNode(source):
		return is(node)
	case t.Interface != "" || t.InterfacePrefix != "":
		return is(pod) || is(outside)
	}
	return is(outside)
}

// origins tell where flows come from.
type origins struct {
	node *proxy.Node
	// local are the addresses of the node's interfaces.
	local set[netip.Addr]
}

func (o *origins) isNode(source netip.Addr) bool {
	return source.IsLoopback() || o.local.has(source) || slices.Contains(o.node.Addresses, source)
}
