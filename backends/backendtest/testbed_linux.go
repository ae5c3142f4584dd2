package backendtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/netns"
)

// testbed is a small cluster of network namespaces, with real servers:
//
//	client  local  local2         outside   stranger
//	      \   |   /                   |      |
//	       [ node ]-------------------+------+
//	        |    |
//	 [ gateway ] [ remote-node ]
//	               |        |
//	             remote  remote2
//
// The node is where a backend programs its dataplane. Every way between two
// places of the drawing leads through what stands between them, both ways. The
// gateway is the node's default route and owns all ranges of virtual addresses,
// so it answers what leaves the node without having been translated. Links have
// no addresses but the hosts' own, and the node has the same one at all links but
// those of pods, so it appears as that wherever it masquerades. What a [world]
// changes of that, nodeTowards tells.
//
// Its methods may be called from several goroutines at once.
type testbed struct {
	world   world
	hosts   []*host
	servers []*server
	// lacks tells what the dataplane of the node cannot do; nil: nothing.
	lacks func(Capability) bool
}

// host is a place with its network namespace.
type host struct {
	site
	ns *netns.NS
	// uplink is the host that the default route leads to; nil for the node.
	uplink *host
}

// newTestbed builds the testbed of a world. It takes the privileges of [netns.New].
func newTestbed(ctx context.Context, w world) (*testbed, error) {
	b := &testbed{world: w}
	if err := b.build(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("building the testbed: %w", err), b.Close())
	}
	return b, nil
}

// Close ends the servers and the namespaces.
func (b *testbed) Close() error {
	var errs []error
	for _, s := range b.servers {
		errs = append(errs, s.Close())
	}
	for _, h := range b.hosts {
		errs = append(errs, h.ns.Close())
	}
	return errors.Join(errs...)
}

// host gives a place of the testbed; nil if there is none of that name.
func (b *testbed) host(at place) *host {
	i := slices.IndexFunc(b.hosts, func(h *host) bool { return h.name == at })
	if i < 0 {
		return nil
	}
	return b.hosts[i]
}

// node gives the namespace of the node.
func (b *testbed) node() *netns.NS { return b.host(atNode).ns }

// addr gives the first address of a place in a family.
func (b *testbed) addr(at place, family v1.IPFamily) netip.Addr {
	return b.host(at).addr(family)
}

// nodeTowards gives the address that the node sends from, of its own choice and when it
// masquerades.
func (b *testbed) nodeTowards(to netip.Addr) netip.Addr {
	for _, s := range b.world.stands() {
		if s.towards.Contains(to) {
			return s.addr
		}
	}
	if b.isNode(to) {
		return to // what a host sends to itself comes from there
	}
	return b.addr(atNode, ipaddr.FamilyOf(to))
}

// entry gives the interface by which packets from a place reach the node; empty
// for the node itself.
func (b *testbed) entry(from place) string {
	if b.world.bridge != nil && isPod(from) {
		return bridgeName
	}
	h := b.host(from)
	for h.uplink != nil && h.uplink.uplink != nil {
		h = h.uplink
	}
	return h.attachment
}

// flush makes the node forget all connections, so that what was decided for
// earlier ones has no part in what comes. Connections that are translated
// break.
func (b *testbed) flush() error {
	// It stands for all families: the kernel heeds the family only in
	// messages of version 1.
	if err := b.node().Netlink().ConntrackTableFlush(conntrackTable); err != nil {
		return fmt.Errorf("flushing the node's connections: %w", err)
	}
	return nil
}

// conntrackTable is the table of connections, as against that of expectations.
const conntrackTable = 1

func (b *testbed) build(ctx context.Context) error {
	for _, s := range sites() {
		if err := b.add(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := b.routeVirtual(); err != nil {
		return err
	}
	for _, s := range services() {
		if err := b.serve(ctx, s.at, s.name, s.ports...); err != nil {
			return fmt.Errorf("server %s: %w", s.name, err)
		}
	}
	return nil
}

// add makes a host and links it to its uplink, which must be there already.
func (b *testbed) add(s site) error {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	s.addrs = slices.DeleteFunc(s.addrs, func(a netip.Addr) bool { return !b.world.has(a) })
	h := &host{site: s, ns: ns, uplink: b.host(s.uplink)}
	b.hosts = append(b.hosts, h)
	if s.router {
		if err := ns.Forward(); err != nil {
			return err
		}
	}
	switch {
	case h.uplink == nil:
		return nil
	case b.world.bridge != nil && isPod(h.name):
		return b.plug(h)
	}
	if err := b.attach(h); err != nil || s.name != atRemoteNode || b.world.tunnelMTU == 0 {
		return err
	}
	return b.dig(h)
}

// attach joins a host to its uplink. Neighbours are known from the start: no
// packet waits for an answer to who has an address.
func (b *testbed) attach(h *host) error {
	up := h.uplink
	err := netns.Link(netns.End{NS: up.ns, Name: h.attachment}, netns.End{NS: h.ns, Name: uplinkName})
	if err != nil {
		return err
	}
	below, err := h.ns.HardwareAddr(uplinkName)
	if err != nil {
		return err
	}
	above, err := up.ns.HardwareAddr(h.attachment)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range h.addrs {
		hop := uplinkAddr(a)
		errs = append(errs,
			h.ns.AddAddress(uplinkName, single(a)),
			h.ns.AddNeighbor(uplinkName, hop, above),
			h.ns.AddRoute(netns.Route{To: everything(a), Link: uplinkName, Via: hop}),
			up.ns.AddNeighbor(h.attachment, a, below),
			up.ns.AddRoute(netns.Route{To: single(a), Link: h.attachment}),
			b.announce(up, a))
		if up.name == atNode && !isPod(h.name) {
			errs = append(errs, b.number(h.attachment, ipaddr.FamilyOf(a)))
		}
	}
	return errors.Join(errs...)
}

// announce tells the routers above one that an address is behind it.
func (b *testbed) announce(h *host, a netip.Addr) error {
	if h.uplink == nil {
		return nil
	}
	way := netns.Route{To: single(a), Link: h.attachment, Via: h.addr(ipaddr.FamilyOf(a))}
	if b.world.tunnelMTU > 0 {
		way = tunnelTo(atRemoteNode, way.To)
	}
	return errors.Join(h.uplink.ns.AddRoute(way), b.announce(h.uplink, a))
}

// routeVirtual gives the node its other addresses and its default route, and the
// gateway the virtual addresses.
func (b *testbed) routeVirtual() error {
	node, gateway := b.host(atNode), b.host(atGateway)
	var errs []error
	for _, a := range node.addrs {
		errs = append(errs, b.number(idleName, ipaddr.FamilyOf(a)), node.ns.AddRoute(netns.Route{
			To: everything(a), Link: gateway.attachment, Via: gateway.addr(ipaddr.FamilyOf(a)),
		}))
	}
	for _, a := range slices.DeleteFunc(secondaryAddrs(), func(a netip.Addr) bool { return !b.world.has(a) }) {
		errs = append(errs, node.ns.AddSecondary(gateway.attachment, single(a)))
	}
	// Answers come from virtual addresses, which IPv6 does not take for its
	// own.
	errs = append(errs, gateway.ns.Sysctl("net/ipv6/ip_nonlocal_bind", "1"))
	for _, r := range virtualRanges() {
		errs = append(errs, gateway.ns.AddRoute(netns.Route{To: r, Link: "lo", Local: true}))
	}
	return errors.Join(errs...)
}

// serve starts servers for TCP and UDP at all addresses of a place.
func (b *testbed) serve(ctx context.Context, at place, name string, ports ...uint16) error {
	for _, port := range ports {
		s, err := startServer(ctx, b.host(at).ns, name, port)
		if err != nil {
			return err
		}
		b.servers = append(b.servers, s)
	}
	return nil
}
