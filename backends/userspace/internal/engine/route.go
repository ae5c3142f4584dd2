package engine

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// frontendKey is what a frontend is found by.
type frontendKey struct {
	addr     netip.AddrPort
	protocol v1.Protocol
}

// binding is a frontend with the service port that it is of.
type binding struct {
	service  *service
	port     *proxy.ServicePort
	frontend *proxy.Frontend
}

// decision is what must become of a flow, as [proxy.Route] says it.
type decision struct {
	action    proxy.Action
	service   *service
	port      *proxy.ServicePort
	pool      proxy.Pool
	endpoints []*endpoints.Endpoint

	flow       Flow
	fromNode   bool
	masquerade bool
	node       *proxy.Node
	links      links
	seen       view // by the last endpoint that was asked about
}

// links tells by which link packets to an address leave.
type links struct {
	of     func(netip.Addr) int // may be nil
	client int                  // 0 before anybody has asked
}

// view is what an endpoint sees of a flow.
type view struct {
	by *endpoints.Endpoint
	// from is the address that it must see; none where it must see the node.
	from netip.Addr
	// source tells apart who experiences what at the endpoint: clients that it
	// sees, and the node in the name of all others.
	source netip.Addr
	// link is that by which answers leave for a client that it sees; 0 for the node.
	link int
}

// decide finds the service port of a flow, and what must become of it. A flow
// to anything else is dropped.
func (e *Engine) decide(f Flow) decision {
	e.mu.RLock()
	node := e.applied.Node()
	b, found := e.find(f, node)
	e.mu.RUnlock()
	d := decision{action: proxy.Drop, flow: f, node: node, service: b.service, port: b.port, links: links{of: e.config.Hooks.Link}}
	if !found {
		return d
	}
	source := f.Client.Addr()
	if b.frontend.Restricted && !slices.ContainsFunc(b.frontend.AllowedSources, func(p netip.Prefix) bool { return p.Contains(source) }) {
		return d
	}
	route := b.frontend.FromOutside
	f.Origin, d.fromNode = originOf(f, node)
	if f.Origin != Outside {
		route = b.frontend.FromInside
	}
	d.flow = f
	if d.action = route.Action; d.action != proxy.Forward {
		return d
	}
	d.pool, d.endpoints = route.Pool, b.port.Pool(route.Pool)
	d.masquerade = route.Masquerade == proxy.MasqueradeAlways || route.Masquerade == proxy.MasqueradeNonPods && f.Origin != Pod
	if len(d.endpoints) == 0 {
		d.action = proxy.Drop
	}
	return d
}

// find gives the frontend that a flow is sent to. It requires e.mu.
func (e *Engine) find(f Flow, node *proxy.Node) (binding, bool) {
	if node == nil {
		return binding{}, false
	}
	b, ok := e.frontends[frontendKey{f.Frontend, f.Protocol}]
	if ok || !servesNodePorts(node, f.Frontend.Addr()) {
		return b, ok
	}
	b, ok = e.frontends[frontendKey{netip.AddrPortFrom(unspecified(f.Frontend.Addr()), f.Frontend.Port()), f.Protocol}]
	return b, ok
}

func servesNodePorts(node *proxy.Node, a netip.Addr) bool {
	return !a.IsLoopback() && (node.NodePorts.All ||
		slices.ContainsFunc(node.NodePorts.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }))
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// holderOf tells who a flow is of before anybody has decided on it.
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

// originOf tells where a flow comes from, and whether it starts on the node: the
// node may have an address that is among those of pods.
func originOf(f Flow, node *proxy.Node) (o Origin, fromNode bool) {
	source := f.Client.Addr()
	fromNode = f.Origin == Node || f.Origin == ByAddress && (source.IsLoopback() || slices.Contains(node.Addresses, source))
	switch {
	case f.Origin == Pod, node.LocalTraffic.Match(source, ""):
		return Pod, fromNode
	case fromNode:
		return Node, true
	}
	return Outside, false
}

// from gives the address that an endpoint must see if it can; none where it must see
// the node.
func (d *decision) from(endpoint *endpoints.Endpoint) netip.Addr {
	to, source := endpoint.Addr.Addr(), d.flow.Client.Addr()
	masquerade := d.masquerade
	switch {
	case masquerade && !d.fromNode && slices.Contains(d.node.Addresses, to):
		masquerade = false // it does not leave the node
	case to == source:
		masquerade = true // it would answer itself
	}
	if masquerade {
		return netip.Addr{}
	}
	return source
}

// view gives what an endpoint sees.
func (d *decision) view(endpoint *endpoints.Endpoint) *view {
	if d.seen.by == endpoint {
		return &d.seen
	}
	v := view{by: endpoint, from: d.from(endpoint)}
	if v.from.IsValid() && !d.fromNode && d.links.of != nil {
		v.link = d.clientLink()
		if v.link != unknownLink && v.link == d.links.of(endpoint.Addr.Addr()) {
			// The endpoint's answers would go to the client without passing
			// the node.
			v.from, v.link = netip.Addr{}, 0
		}
	}
	v.source = clientKey(v.from, d.flow.Origin)
	d.seen = v
	return &d.seen
}

// unknownLink is that of clients of whom nobody knows one.
const unknownLink = -1

func (d *decision) clientLink() int {
	if d.links.client == 0 {
		d.links.client = cmp.Or(d.links.of(d.flow.Client.Addr()), unknownLink)
	}
	return d.links.client
}
