package conntrack

import (
	"errors"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// Where flows come from: outside, a pod and the node itself.
const outside, pod, self = "198.51.100.7:4000", "10.244.0.7:4000", "192.0.2.1:4000"

// by returns a flow of a client to vip2.
func by(client, server string) flow {
	f := to(protoUDP, vip2, server)
	f.source = netip.MustParseAddrPort(client)
	return f
}

// routed returns a service port with an external address, and endpoint a on this node. Its
// edits are made before it is published.
func routed(edits ...func(*proxy.ServicePort)) *proxy.ServicePort {
	p := port("dns", v1.ProtocolUDP, list(vip2), list(a, b))
	p.Cluster[0].Local = true
	p.Local = p.Cluster[:1]
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func externalLocal(p *proxy.ServicePort) { p.Frontends[0].FromOutside.Pool = proxy.PoolLocal }

func internalLocal(p *proxy.ServicePort) { p.Frontends[0].FromInside.Pool = proxy.PoolLocal }

// noLocal removes the endpoint of this node from the Local pool.
func noLocal(p *proxy.ServicePort) {
	p.Local, p.Frontends[0].FromOutside = nil, proxy.TrafficRoute{Action: proxy.Drop}
}

func allow(prefixes ...string) func(*proxy.ServicePort) {
	return func(p *proxy.ServicePort) {
		f := &p.Frontends[0]
		f.Restricted, f.AllowedSources = true, append(f.AllowedSources, snapshots.Prefixes(prefixes...)...)
	}
}

// drain has the endpoints outside of the Local pool, or all, terminate.
func drain(p *proxy.ServicePort) {
	for _, e := range p.Cluster {
		p.Draining = append(p.Draining, &endpoints.Endpoint{Addr: e.Addr, Serving: true, Terminating: true, Local: e.Local})
	}
	p.Cluster = snapshots.Endpoints(x + " local")
	p.Local = p.Cluster
}

// TestFlowsFollowRoutes checks that a flow is removed if, and only if, its route excludes its endpoint.
func TestFlowsFollowRoutes(t *testing.T) { //nolint:funlen // a table
	t.Parallel()
	pods := proxy.LocalTraffic{Sources: snapshots.Prefixes("10.244.0.0/16")}
	byInterface := proxy.LocalTraffic{Interface: "cni0"}
	with := func(traffic proxy.LocalTraffic, p *proxy.ServicePort) proxy.Snapshot {
		n := node()
		n.LocalTraffic = traffic
		return proxy.NewSnapshot(n, p)
	}
	for name, tc := range map[string]struct {
		old, new    proxy.Snapshot
		stale, kept []flow
		dumps       int
	}{
		"external policy becomes Local": {
			old: with(pods, routed()), new: with(pods, routed(externalLocal)), dumps: 1,
			stale: []flow{by(outside, b)},
			kept:  []flow{by(outside, a), by(pod, a), by(pod, b), by(self, b), by("127.0.0.1:4000", b)},
		},
		"internal policy becomes Local": {
			old: with(pods, routed()), new: with(pods, routed(internalLocal)), dumps: 1,
			stale: []flow{by(pod, b), by(self, b)}, kept: []flow{by(outside, b), by(pod, a), by(self, a)},
		},
		"policy becomes Cluster": {
			old: with(pods, routed(externalLocal, internalLocal)), new: with(pods, routed()),
			kept: []flow{by(outside, a), by(pod, a), by(outside, b)},
		},
		"policy becomes Local, no endpoint on the node": {
			old: with(pods, routed()), new: with(pods, routed(noLocal)), dumps: 1,
			stale: []flow{by(outside, a), by(outside, b)}, kept: []flow{by(pod, a), by(pod, b)},
		},
		"allowed sources": {
			old: with(pods, routed()), new: with(pods, routed(allow("10.244.0.0/16"))), dumps: 1,
			stale: []flow{by(outside, a), by(self, a)}, kept: []flow{by(pod, a), by(pod, b)},
		},
		"other allowed sources": {
			old: with(pods, routed(allow("10.244.0.0/16", "198.51.100.0/24"))), new: with(pods, routed(allow("198.51.100.0/24"))), dumps: 1,
			stale: []flow{by(pod, a)}, kept: []flow{by(outside, a)},
		},
		"the same allowed sources, and an endpoint more": {
			old: with(pods, routed(allow("198.51.100.0/24"), func(p *proxy.ServicePort) { p.Cluster = p.Cluster[:1] })), new: with(pods, routed(allow("198.51.100.0/24"))),
			kept: []flow{by(outside, a)},
		},
		"all sources again": {
			old: with(pods, routed(allow("198.51.100.0/24"))), new: with(pods, routed()), dumps: 1, kept: []flow{by(outside, a)},
		},
		"pods are known by their interface": {
			old: with(byInterface, routed()), new: with(byInterface, routed(externalLocal)), dumps: 1,
			kept: []flow{by(outside, b), by(pod, b), by(self, b)},
		},
		"pods are known by their interface, and both policies become Local": {
			old: with(byInterface, routed()), new: with(byInterface, routed(externalLocal, internalLocal)), dumps: 1,
			stale: []flow{by(outside, b), by(pod, b), by(self, b)}, kept: []flow{by(outside, a)},
		},
		"pods become known": {
			old: with(proxy.LocalTraffic{}, routed(externalLocal)), new: with(pods, routed(externalLocal)), dumps: 1,
			stale: []flow{by(outside, b)}, kept: []flow{by(pod, a), by(pod, b), by(outside, a)},
		},
		"pods become known, one route": {
			old: with(proxy.LocalTraffic{}, routed()), new: with(pods, routed()), kept: []flow{by(outside, b)},
		},
		"endpoints drain": {
			old: with(pods, routed(externalLocal)), new: with(pods, routed(externalLocal, drain)),
			kept: []flow{by(outside, a), by(pod, a), by(pod, b)},
		},
		"policy becomes Local while endpoints drain": {
			old: with(pods, routed(drain)), new: with(pods, routed(drain, externalLocal)), dumps: 1,
			stale: []flow{by(outside, b)}, kept: []flow{by(outside, a), by(outside, x), by(pod, b)},
		},
		"endpoint removed while userspace carries flows": {
			old: with(pods, routed()), new: with(pods, routed(func(p *proxy.ServicePort) { p.Cluster = p.Cluster[:1] })), dumps: 1,
			stale: []flow{by(outside, b)}, kept: []flow{by(outside, vip2), by(outside, "0.64.3.1:4000"), by(pod, "0.64.3.2:4000")},
		},
		"userspace carries flows, and some are dropped": {
			old: with(pods, routed()), new: with(pods, routed(noLocal)), dumps: 1,
			stale: []flow{by(outside, "0.64.3.1:4000")}, kept: []flow{by(pod, "0.64.3.2:4000"), by(outside, vip2)},
		},
		"userspace was replaced": {
			new: with(pods, routed()), dumps: 2, // the second finds no reply
			stale: []flow{by(outside, vip2), by(outside, "0.64.3.1:4000")}, kept: []flow{by(outside, b)},
		},
		"start": {
			new: with(pods, routed(externalLocal)), dumps: 1,
			stale: []flow{by(outside, b)}, kept: []flow{by(outside, a), by(pod, b), by(self, b)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := &fakeTable{flows: append(append([]flow(nil), tc.stale...), tc.kept...)}
			mustClean(t, newCleaner(Options{}, table), tc.old, tc.new)
			wantFlows(t, table, tc.kept...)
			if table.dumps != tc.dumps || table.removes != len(tc.stale) {
				t.Errorf("got %d dumps and %d removals, want %d and %d", table.dumps, table.removes, tc.dumps, len(tc.stale))
			}
		})
	}
}

// A failure to list the addresses of the node is an error.
func TestOwnAddressesUnknown(t *testing.T) {
	t.Parallel()
	table := &fakeTable{unlisted: errors.New("no addresses")}
	before, after := proxy.NewSnapshot(node(), routed()), proxy.NewSnapshot(node(), routed(externalLocal))
	if err := newCleaner(Options{}, table).Clean(t.Context(), before, after); err == nil || table.dumps != 0 {
		t.Errorf("got error %v and %d dumps, want an error and none", err, table.dumps)
	}
}

// withNodePort returns a service port of UDP with node port 30053.
func withNodePort(family v1.IPFamily, servers ...string) *proxy.ServicePort {
	return port("dns", v1.ProtocolUDP, list(map[v1.IPFamily]string{v1.IPv4Protocol: ":30053", v1.IPv6Protocol: "[::]:30053"}[family]), servers)
}

// At new node ports, untranslated flows are removed, in both families, and flows that began
// with a reply from there.
func TestNewNodePort(t *testing.T) {
	t.Parallel()
	for family, tc := range map[v1.IPFamily]struct{ ours, others, near, server string }{
		v1.IPv4Protocol: {"192.0.2.1:30053", "203.0.113.1:30053", "192.0.2.1:30054", a},
		v1.IPv6Protocol: {"[2001:db8::1]:30053", "[2001:db8::2]:30053", "[2001:db8::1]:30054", "[fd00:10::2]:5353"},
	} {
		back := func(source string) flow {
			f := to(protoUDP, source, source)
			f.source, f.dest, f.server = f.dest, f.source, f.source
			return f
		}
		kept := []flow{
			to(protoUDP, tc.ours, tc.server), to(protoUDP, tc.others, tc.others), back(tc.others), to(protoUDP, tc.near, tc.near), back(tc.near),
			{proto: protoUDP, source: back(tc.ours).source, dest: back(tc.near).source, server: back(tc.others).source}, // translated by another program
		}
		for _, deaf := range []bool{false, true} {
			table := &fakeTable{flows: append([]flow{to(protoUDP, tc.ours, tc.ours), back(tc.ours)}, kept...), deaf: deaf}
			n := snapshots.Node()
			mustClean(t, newCleaner(Options{}, table), proxy.NewSnapshot(n), proxy.NewSnapshot(n, withNodePort(family, tc.server)))
			wantFlows(t, table, kept...)
		}
	}
}

// Flows that began with a reply from a frontend that is not new stay, also if the kernel
// returns them together with those from a new one.
func TestRepliesFromKnownFrontends(t *testing.T) {
	t.Parallel()
	with := func(frontends ...string) proxy.Snapshot {
		return proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, frontends, list(a)), port("ntp", v1.ProtocolUDP, list("10.96.0.11:123"), list(a)))
	}
	gone := port("ntp", v1.ProtocolUDP, list("10.96.0.11:123"), list(a, b))
	table := &fakeTable{flows: []flow{from(protoUDP, vip2), from(protoUDP, "10.96.0.11:123")}, deaf: true}
	mustClean(t, newCleaner(Options{}, table), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)), gone), with(vip, vip2))
	wantFlows(t, table, from(protoUDP, "10.96.0.11:123"))
}

// A changed Node with the same addresses for node ports needs no dump.
func TestSameNodePortAddresses(t *testing.T) {
	t.Parallel()
	table := &fakeTable{flows: []flow{to(protoUDP, "192.0.2.1:30053", x)}}
	p := withNodePort(v1.IPv4Protocol, a)
	mustClean(t, newCleaner(Options{}, table), proxy.NewSnapshot(snapshots.Node("192.0.2.1"), p), proxy.NewSnapshot(snapshots.Node("192.0.2.1"), p))
	if table.dumps != 0 {
		t.Errorf("got %d dumps, want none", table.dumps)
	}
}

// At loopback addresses that serve node ports, flows that another program has translated are stale if
// their endpoint is gone; those that a process of the node answers are not.
func TestLoopbackNodePort(t *testing.T) {
	t.Parallel()
	const at = "127.0.0.1:30053"
	n := snapshots.Node()
	n.NodePorts.Loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	kept := []flow{to(protoUDP, at, a), to(protoUDP, at, at), to(protoUDP, "127.0.0.1:30054", b)}
	table := &fakeTable{flows: append([]flow{to(protoUDP, at, b)}, kept...), deaf: true}
	mustClean(t, newCleaner(Options{}, table), proxy.NewSnapshot(n), proxy.NewSnapshot(n, withNodePort(v1.IPv4Protocol, a)))
	wantFlows(t, table, kept...)
}
