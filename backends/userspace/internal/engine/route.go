package engine

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// frontendKey identifies a frontend.
type frontendKey struct {
	addr     netip.AddrPort
	protocol v1.Protocol
}

// binding is a frontend and its service port.
type binding struct {
	service  *service
	port     *proxy.ServicePort
	frontend *proxy.Frontend
}

// decision is what must happen to a flow; it agrees with [proxy.Route].
type decision struct {
	service *service
	// port is nil if there is none, or the client may not connect.
	port      *proxy.ServicePort
	route     proxy.TrafficRoute
	endpoints []*endpoints.Endpoint

	flow     Flow
	fromNode bool
	node     *proxy.Node
	linkOf   func(netip.Addr) int // Config.Link; may be nil
	seen     view                 // the last result of decision.view
}

// view is what an endpoint sees of a flow.
type view struct {
	by *endpoints.Endpoint
	// from is the address that the endpoint must see; not valid if it must see the node.
	from netip.Addr
	// source is the client for whom failures of the endpoint are recorded. It is not valid
	// if the endpoint sees the node: all those clients have one record.
	source netip.Addr
	// link is the one by which the endpoint's answers to the client leave; 0 for the node.
	link int
}

// decide finds the service port of a flow, and decides what happens to the flow. A flow to
// an address and port without a frontend is dropped.
func (e *Engine) decide(f Flow) decision {
	e.mu.RLock()
	node := e.applied.Node()
	b, found := e.find(f, node)
	e.mu.RUnlock()
	dropped := proxy.TrafficRoute{Action: proxy.Drop}
	d := decision{route: dropped, flow: f, node: node, service: b.service, linkOf: e.config.Link}
	if !found || !b.frontend.Allows(f.Client.Addr()) {
		return d
	}
	d.port = b.port
	f.Origin, d.fromNode = originOf(f, node)
	d.flow = f
	pod, fromNode, outside := b.frontend.Routes()
	switch f.Origin {
	case Pod:
		d.route = pod
	case Node:
		d.route = fromNode
	case Outside, ByAddress:
		d.route = outside
	}
	if d.route.Action != proxy.Forward {
		return d
	}
	if d.endpoints = b.port.Pool(d.route.Pool); len(d.endpoints) == 0 {
		d.route = dropped
	}
	return d
}

// find returns the frontend of a flow. It requires e.mu.
func (e *Engine) find(f Flow, node *proxy.Node) (binding, bool) {
	if node == nil {
		return binding{}, false
	}
	b, ok := e.frontends[frontendKey{f.Frontend, f.Protocol}]
	if ok || !servesNodePorts(node, f.Frontend.Addr()) {
		return b, ok
	}
	b, ok = e.frontends[nodePortKey(f.Protocol, f.Frontend)]
	return b, ok
}

func nodePortKey(protocol v1.Protocol, at netip.AddrPort) frontendKey {
	return frontendKey{netip.AddrPortFrom(ipaddr.Unspecified(ipaddr.FamilyOf(at.Addr())), at.Port()), protocol}
}

// IsFrontend reports whether an address and port is a frontend, or a node port at any address
// of this node, which may have more addresses than its Node object lists. It needs Config.IsLocal.
func (e *Engine) IsFrontend(protocol v1.Protocol, at netip.AddrPort) bool {
	e.mu.RLock()
	_, is := e.frontends[frontendKey{at, protocol}]
	_, isPort := e.frontends[nodePortKey(protocol, at)]
	node := e.applied.Node()
	e.mu.RUnlock()
	return is || isPort && (slices.Contains(node.Addresses, at.Addr()) || e.config.IsLocal(at.Addr()))
}

// servesNodePorts reports whether node ports answer at an address. Only the capture of loopback
// addresses has flows to them.
func servesNodePorts(node *proxy.Node, a netip.Addr) bool {
	return node.NodePorts.Contains(a) || a.IsLoopback() && slices.Contains(node.NodePorts.LoopbackAddresses(), a)
}

// holderOf returns what a flow counts for, before there is a decision on it.
func (e *Engine) holderOf(f Flow) holder {
	e.mu.RLock()
	defer e.mu.RUnlock()
	node := e.applied.Node()
	b, _ := e.find(f, node)
	if node != nil && f.Origin == ByAddress {
		f.Origin, _ = originOf(f, node)
	}
	return holder{clientKey(f.Client.Addr(), f.Origin), b.service}
}

// originOf returns the origin of a flow, and whether it starts on the node. Both differ if
// the node has an address in the range of pods: the origin is then Pod. Only the node itself can have
// the address of a frontend, where that is not known otherwise, and the system prefers it as the source
// of connections to it.
func originOf(f Flow, node *proxy.Node) (o Origin, fromNode bool) {
	source := f.Client.Addr()
	fromNode = f.Origin == Node || f.Origin == ByAddress && (source.IsLoopback() || source == f.Frontend.Addr() || slices.Contains(node.Addresses, source))
	switch {
	case f.Origin == Pod, node.LocalTraffic.Match(source, ""):
		return Pod, fromNode
	case fromNode:
		return Node, true
	}
	return Outside, false
}

// from returns the address that an endpoint should see: the client's, or with masquerade an
// invalid one, so that [Dial].From is invalid and the kernel chooses an address of the node.
// It is also the place where a hairpin is masqueraded.
func (d *decision) from(endpoint *endpoints.Endpoint) netip.Addr {
	source := d.flow.Client.Addr()
	if d.route.Masquerades(d.node, source, endpoint.Addr.Addr(), d.fromNode) {
		return netip.Addr{}
	}
	return source
}

// view returns what an endpoint sees of the flow.
func (d *decision) view(endpoint *endpoints.Endpoint) *view {
	if d.seen.by == endpoint {
		return &d.seen
	}
	v := view{by: endpoint, from: d.from(endpoint)}
	if v.from.IsValid() && !d.fromNode && d.linkOf != nil {
		const unknown = -1 // 0 is for the node
		v.link = cmp.Or(d.linkOf(v.from), unknown)
		if v.link == d.linkOf(endpoint.Addr.Addr()) {
			// The endpoint's answers would reach the client directly and bypass
			// the node.
			v.from, v.link = netip.Addr{}, 0
		}
	}
	v.source = clientKey(v.from, d.flow.Origin)
	d.seen = v
	return &d.seen
}
