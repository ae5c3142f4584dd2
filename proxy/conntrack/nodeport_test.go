package conntrack

import (
	"errors"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

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

// A failure to list addresses is an error only if there are node ports.
func TestUnlistedAddresses(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for front, want := range map[string]error{vip: nil, ":30053": broken} {
		table := &fakeTable{unlisted: broken}
		err := newCleaner(Options{}, table).Clean(t.Context(), proxy.NewSnapshot(node()), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(front), list(a))))
		if !errors.Is(err, want) || want != nil && table.dumps != 0 {
			t.Errorf("a frontend at %s: got %d dumps and error %v, want error %v", front, table.dumps, err, want)
		}
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
