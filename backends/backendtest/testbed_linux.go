package backendtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

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
// The node is where a backend programs its dataplane. Packets between two hosts of
// the drawing pass the hosts between them, in both directions. The gateway is the
// node's default route and owns all ranges of virtual addresses, so it answers packets
// that leave the node without translation. Links have only the hosts' own addresses,
// and the node has the same one at all links except those of pods, so that is its
// source address when it masquerades. nodeTowards has the exceptions in a [world].
//
// Its methods may be called from several goroutines at once.
type testbed struct {
	world   world
	hosts   []*host
	servers []*server
	// lacks reports whether the dataplane of the node lacks a capability; nil: it has all.
	lacks func(Capability) bool
	// lost says that an answer was missing after the whole patience of a probe.
	lost atomic.Bool
}

// host is a host with its network namespace.
type host struct {
	hostSpec
	ns *netns.NS
	// uplink is the next hop of the default route; nil for the node.
	uplink *host
	// flows counts the ports that flows were made from.
	flows atomic.Uint32
}

// Flows are made from sourcePorts ports from firstSourcePort on, as the kernel would choose.
const firstSourcePort, sourcePorts = 32768, 28232

// sourcePort returns a port that no flow of the host had until all others were used: a
// dataplane may send a flow with the port of an earlier one, by an entry in one of its tables
// that outlives the flow, where that one went.
func (h *host) sourcePort() uint16 {
	return uint16(firstSourcePort + h.flows.Add(1)%sourcePorts)
}

// newTestbed builds the testbed of a world. It needs the privileges of [netns.New].
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

// host returns a host of the testbed; nil if there is none of that name.
func (b *testbed) host(at hostName) *host {
	i := slices.IndexFunc(b.hosts, func(h *host) bool { return h.name == at })
	if i < 0 {
		return nil
	}
	return b.hosts[i]
}

// node returns the namespace of the node.
func (b *testbed) node() *netns.NS { return b.host(atNode).ns }

// addr returns the first address of a host in a family.
func (b *testbed) addr(at hostName, family v1.IPFamily) netip.Addr {
	return b.host(at).addr(family)
}

// nodeTowards returns the source address that the node selects for its own packets to a
// destination, and for masqueraded ones.
func (b *testbed) nodeTowards(to netip.Addr) netip.Addr {
	for _, s := range b.world.sourceAddrs() {
		if s.towards.Contains(to) {
			return s.addr
		}
	}
	if b.isNode(to) {
		return to // packets of a host to itself have that source
	}
	return b.addr(atNode, ipaddr.FamilyOf(to))
}

// entry returns the interface of the node that receives packets from a host; empty for
// the node itself.
func (b *testbed) entry(from hostName) string {
	if b.world.bridge != nil && isPod(from) {
		return bridgeName
	}
	h := b.host(from)
	for h.uplink != nil && h.uplink.uplink != nil {
		h = h.uplink
	}
	return h.attachment
}

// flush removes all entries of the node's connection tracking, so that earlier decisions do
// not affect later packets. Translated connections break.
func (b *testbed) flush() error {
	// This flushes all families: the kernel uses the family only in messages
	// of version 1.
	if err := b.node().Netlink().ConntrackTableFlush(conntrackTable); err != nil {
		return fmt.Errorf("flushing connection tracking of the node: %w", err)
	}
	return nil
}

// conntrackTable is the table of connections; another one has expectations.
const conntrackTable = 1

func (b *testbed) build(ctx context.Context) error {
	for _, s := range hostSpecs() {
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

// add makes a host and links it to its uplink, which must exist already.
func (b *testbed) add(s hostSpec) error {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	s.addrs = slices.DeleteFunc(s.addrs, func(a netip.Addr) bool { return !b.world.has(a) })
	h := &host{hostSpec: s, ns: ns, uplink: b.host(s.uplink)}
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
		return b.addToBridge(h)
	}
	if err := b.attach(h); err != nil || s.name != atRemoteNode || b.world.tunnelMTU == 0 {
		return err
	}
	return b.addTunnel(h)
}

// attach links a host to its uplink, with static neighbour entries: no packet waits for
// ARP or neighbour discovery.
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
			b.routeAbove(up, a))
		if up.name == atNode && !isPod(h.name) {
			errs = append(errs, b.addAddresses(h.attachment, ipaddr.FamilyOf(a)))
		}
	}
	return errors.Join(errs...)
}

// routeAbove adds routes to an address behind a host on the routers above it.
func (b *testbed) routeAbove(h *host, a netip.Addr) error {
	if h.uplink == nil {
		return nil
	}
	route := netns.Route{To: single(a), Link: h.attachment, Via: h.addr(ipaddr.FamilyOf(a))}
	if b.world.tunnelMTU > 0 {
		route = tunnelTo(atRemoteNode, route.To)
	}
	return errors.Join(h.uplink.ns.AddRoute(route), b.routeAbove(h.uplink, a))
}

// routeVirtual adds the node's other addresses and its default route, and the virtual
// addresses to the gateway.
func (b *testbed) routeVirtual() error {
	node, gateway := b.host(atNode), b.host(atGateway)
	var errs []error
	for _, a := range node.addrs {
		errs = append(errs, b.addAddresses(idleName, ipaddr.FamilyOf(a)), node.ns.AddRoute(netns.Route{
			To: everything(a), Link: gateway.attachment, Via: gateway.addr(ipaddr.FamilyOf(a)),
		}))
	}
	for _, a := range slices.DeleteFunc(secondaryAddrs(), func(a netip.Addr) bool { return !b.world.has(a) }) {
		errs = append(errs, node.ns.AddSecondary(gateway.attachment, single(a)))
	}
	// Answers have virtual addresses as source, which are not local ones for
	// IPv6.
	errs = append(errs, gateway.ns.Sysctl("net/ipv6/ip_nonlocal_bind", "1"))
	for _, r := range virtualRanges() {
		errs = append(errs, gateway.ns.AddRoute(netns.Route{To: r, Link: "lo", Local: true}))
	}
	return errors.Join(errs...)
}

// serve starts servers for TCP and UDP at all addresses of a host.
func (b *testbed) serve(ctx context.Context, at hostName, name string, ports ...uint16) error {
	for _, port := range ports {
		s, err := startServer(ctx, b.host(at).ns, name, port)
		if err != nil {
			return err
		}
		b.servers = append(b.servers, s)
	}
	return nil
}
