package conntrack

import (
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// kept are the endpoints of one service port to which existing flows may go on, by what decides about
// them: the action and the pool of a route. Nothing is computed before it is needed.
type kept struct {
	port *proxy.ServicePort
	by   map[proxy.TrafficRoute]set[netip.AddrPort]
	// servers are all endpoints.
	servers set[netip.AddrPort]
	// lacking are the results of lacks: many frontends have equal routes.
	lacking map[[2]proxy.TrafficRoute]bool
}

func newKept(p *proxy.ServicePort) *kept {
	return &kept{port: p, by: map[proxy.TrafficRoute]set[netip.AddrPort]{}, lacking: map[[2]proxy.TrafficRoute]bool{}}
}

// of returns the endpoints of one route.
func (k *kept) of(r proxy.TrafficRoute) set[netip.AddrPort] {
	r.Masquerade = 0
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

// hasServer reports whether any endpoint has an address.
func (k *kept) hasServer(at netip.AddrPort) bool {
	if k == nil {
		return false
	}
	if k.servers == nil {
		k.servers = k.port.Servers()
	}
	return k.servers.has(at)
}

// sides are the routes of the flows of pods, of the node and of all others.
func sides(f *proxy.Frontend) [3]proxy.TrafficRoute {
	pod, node, outside := f.Routes()
	return [...]proxy.TrafficRoute{pod, node, outside}
}

// isUniform reports whether flows of all sources go to the same endpoints.
func isUniform(f *proxy.Frontend) bool {
	all := sides(f)
	for i := range all {
		all[i].Masquerade = 0
	}
	return all[0] == all[1] && all[1] == all[2]
}

// excludes reports whether flows that were right before a change of a frontend may be stale: it denies some
// of their sources, or excludes some of their endpoints.
func (k *kept) excludes(f *proxy.Frontend, before *kept, was *proxy.Frontend) bool {
	if f.Restricted && (!was.Restricted || !slices.Equal(f.AllowedSources, was.AllowedSources)) {
		return true
	}
	now, then := sides(f), sides(was)
	for i := range now {
		if k.lacks(now[i], before, then[i]) {
			return true
		}
	}
	return false
}

// lacks reports whether a route lacks an endpoint of another route of the port before a change.
func (k *kept) lacks(now proxy.TrafficRoute, before *kept, then proxy.TrafficRoute) bool {
	pair := [...]proxy.TrafficRoute{now, then}
	lacks, known := k.lacking[pair]
	if known {
		return lacks
	}
	have := k.of(now)
	for e := range before.of(then) {
		lacks = lacks || !have.has(e)
	}
	k.lacking[pair] = lacks
	return lacks
}

// owner is the frontend that a flow is for: what [proxy.Route] says about it.
type owner struct {
	frontend *proxy.Frontend
	kept     *kept
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
