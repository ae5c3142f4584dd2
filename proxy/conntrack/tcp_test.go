package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestTCPPolicies(t *testing.T) {
	t.Parallel()
	n := node()
	old, new := proxy.NewSnapshot(n, port("web", v1.ProtocolTCP, list(vip), list(a, b))), proxy.NewSnapshot(n, port("web", v1.ProtocolTCP, list(vip), list(b)))
	half, open, live := to(protoTCP, vip, a), to(protoTCP, vip, a), to(protoTCP, vip, b)
	half.state, open.state = 1, 3
	open.source = netip.MustParseAddrPort("198.51.100.8:1")
	live.source = netip.MustParseAddrPort("198.51.100.9:1")
	untranslated := to(protoTCP, vip, vip) // another program's: the frontend is not new
	untranslated.state = 1
	for name, tc := range map[string]struct {
		policy TCPPolicy
		left   int
	}{"keep": {KeepTCP, 4}, "half open": {DropHalfOpenTCP, 3}, "reset": {ResetTCP, 2}} {
		t.Run(name, func(t *testing.T) {
			inAPI := true
			table := &fakeTable{flows: []flow{half, open, live, untranslated}}
			c := newCleaner(Options{TCP: tc.policy, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { return inAPI }}, table)
			mustClean(t, c, old, new)
			if len(table.flows) != 4 || table.dumps != 0 || c.Due() {
				t.Fatalf("the endpoint is in the API: got %d flows left, %d dumps and Due %v, want 4, 0 and false", len(table.flows), table.dumps, c.Due())
			}
			inAPI = false
			if want := tc.policy != KeepTCP; c.Due() != want {
				t.Errorf("Due: got %v, want %v", c.Due(), want)
			}
			mustClean(t, c, new, new)
			if len(table.flows) != tc.left || c.Due() {
				t.Errorf("got %d flows left and Due %v, want %d and false", len(table.flows), c.Due(), tc.left)
			}
			dumps := table.dumps
			if mustClean(t, c, new, new); table.dumps != dumps {
				t.Errorf("without a change: got %d more dumps, want none", table.dumps-dumps)
			}
		})
	}
	if _, err := New(Options{TCP: ResetTCP}); err == nil {
		t.Error("New with a policy for TCP and without InAPI: got no error")
	}
}

// Flows of attempts to connect from before their frontend existed are removed, so that the next
// attempts get through; established flows stay.
func TestTCPFlowsBeforeTheirFrontend(t *testing.T) {
	t.Parallel()
	const established = 3
	in := func(state uint8, dest, server string) flow {
		f := to(protoTCP, dest, server)
		f.state = state
		f.source = netip.AddrPortFrom(f.source.Addr(), uint16(state)<<8|uint16(len(dest)+len(server)))
		return f
	}
	flows := []flow{
		in(1, vip, vip), in(2, vip, vip), in(established, vip, vip), in(1, vip, a),
		in(1, "192.0.2.1:30053", "192.0.2.1:30053"), in(established, "192.0.2.1:30053", "192.0.2.1:30053"),
		in(1, "198.51.100.9:30053", "198.51.100.9:30053"), // not of this node
		in(1, "10.96.0.77:53", "10.96.0.77:53"),           // not a frontend
		in(9, vip, vip),                                   // simultaneous open
	}
	halfOpen := []flow{flows[0], flows[1], flows[4], flows[8]}
	n := node("192.0.2.0/24")
	web := func(frontends ...string) proxy.Snapshot {
		return proxy.NewSnapshot(n, port("web", v1.ProtocolTCP, frontends, list(a)))
	}
	none, full := proxy.NewSnapshot(n), web(vip, ":30053")
	for name, tc := range map[string]struct {
		policy   TCPPolicy
		old, new proxy.Snapshot
		gone     []flow
		dumps    int
	}{
		"new Service":        {DropHalfOpenTCP, none, full, halfOpen, 1},
		"new Service, reset": {ResetTCP, none, full, halfOpen, 1},
		"zero old Snapshot":  {DropHalfOpenTCP, proxy.Snapshot{}, full, halfOpen, 1},
		"new node port":      {DropHalfOpenTCP, web(vip), full, halfOpen[2:3], 1},
		"new endpoint":       {DropHalfOpenTCP, proxy.NewSnapshot(n, port("web", v1.ProtocolTCP, list(vip, ":30053"), list(b))), full, nil, 0},
		"new Service, kept":  {KeepTCP, none, full, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			table := &fakeTable{flows: slices.Clone(flows)}
			c := newCleaner(Options{TCP: tc.policy, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { return true }}, table)
			mustClean(t, c, tc.old, tc.new)
			for _, f := range flows {
				same := func(o flow) bool { return o.source == f.source && o.dest == f.dest && o.server == f.server }
				if got, want := !slices.ContainsFunc(table.flows, same), slices.ContainsFunc(tc.gone, same); got != want {
					t.Errorf("flow to %v, server %v, state %d: got removed %v, want %v", f.dest, f.server, f.state, got, want)
				}
			}
			if table.dumps != tc.dumps {
				t.Errorf("got %d dumps, want %d", table.dumps, tc.dumps)
			}
		})
	}
}

// The flows of a removed endpoint are removed whenever it leaves the API, also if all frontends
// are cleaned then, and between two calls of InAPI.
func TestRemovedEndpointLeavesTheAPI(t *testing.T) {
	t.Parallel()
	old, new := proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(a, b))), proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(b)))
	for name, from := range map[string]proxy.Snapshot{"resync": {}, "change": new} {
		t.Run(name, func(t *testing.T) {
			calls, leaves := 0, 2 // calls of InAPI, and the number after which the endpoint leaves
			inAPI := func(proxy.ServicePortName, netip.AddrPort) bool { calls++; return calls <= leaves }
			table := &fakeTable{flows: []flow{to(protoTCP, vip, a)}}
			c := newCleaner(Options{TCP: ResetTCP, InAPI: inAPI}, table)
			mustClean(t, c, old, new)
			leaves = calls
			mustClean(t, c, from, new)
			if len(table.flows) != 0 || c.Due() {
				t.Errorf("got %d flows left and Due %v, want none and false", len(table.flows), c.Due())
			}
		})
	}
	t.Run("race", func(t *testing.T) {
		calls := 0
		table := &fakeTable{flows: []flow{to(protoTCP, vip, a)}}
		c := newCleaner(Options{TCP: ResetTCP, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { calls++; return calls <= 1 }}, table)
		mustClean(t, c, old, new)
		mustClean(t, c, new, new)
		if len(table.flows) != 0 {
			t.Error("the flows of an endpoint that left the API during a Clean are left, want none")
		}
	})
}

// With a Service, the TCP flows to all of its endpoints are removed.
func TestTCPOfARemovedService(t *testing.T) {
	t.Parallel()
	web := port("web", v1.ProtocolTCP, list(vip), list(a))
	table := &fakeTable{flows: []flow{to(protoTCP, vip, a), to(protoTCP, vip, x), to(protoTCP, vip2, a)}}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: gone}, table)
	mustClean(t, c, proxy.NewSnapshot(node(), web), proxy.NewSnapshot(node()))
	if len(table.flows) != 2 || table.flows[0].server == to(protoTCP, vip, a).server {
		t.Errorf("got flows %v left, want all but the one to the removed endpoint", table.flows)
	}
}

// gone is an InAPI for which no endpoint is in the API.
func gone(proxy.ServicePortName, netip.AddrPort) bool { return false }

// wantFlows compares the flows that a table has.
func wantFlows(t *testing.T, table *fakeTable, want ...flow) {
	t.Helper()
	if diff := cmp.Diff(want, table.flows, cmpopts.EquateEmpty(), cmp.AllowUnexported(flow{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("flows left (-want +got):\n%s", diff)
	}
}

// Of several endpoints that leave at once, the flows to all frontends are removed, and InAPI is
// called with the name and address of each.
func TestTCPOfSeveralEndpoints(t *testing.T) {
	t.Parallel()
	old, new := port("web", v1.ProtocolTCP, list(vip, vip2), list(a, b, x)), port("web", v1.ProtocolTCP, list(vip, vip2), list(x))
	table := &fakeTable{flows: []flow{to(protoTCP, vip, a), to(protoTCP, vip2, a), to(protoTCP, vip, b), to(protoTCP, vip2, b), to(protoTCP, vip, x)}}
	calls := map[string]bool{}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: func(name proxy.ServicePortName, at netip.AddrPort) bool {
		calls[name.Name+" "+at.String()] = true
		return false
	}}, table)
	mustClean(t, c, proxy.NewSnapshot(node(), old), proxy.NewSnapshot(node(), new))
	wantFlows(t, table, to(protoTCP, vip, x))
	testenv.Same(t, map[string]bool{"web " + a: true, "web " + b: true}, calls, "calls of InAPI")
	if c.Due() {
		t.Error("after the flows are removed: got Due true, want false")
	}
}

// Due calls InAPI with the name and address of the removed endpoint.
func TestTCPIsDue(t *testing.T) {
	t.Parallel()
	calls := map[string]bool{}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: func(name proxy.ServicePortName, at netip.AddrPort) bool {
		calls[name.Name+" "+at.String()] = true
		return true
	}}, &fakeTable{})
	mustClean(t, c, proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(a, b))), proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(b))))
	clear(calls)
	isDue := c.Due()
	if diff := cmp.Diff(map[string]bool{"web " + a: true}, calls); diff != "" || isDue {
		t.Errorf("Due: got %v, want false; calls of InAPI (-want +got):\n%s", isDue, diff)
	}
}

// The policies for TCP change nothing for UDP, and TCP flows to the address of a UDP Service
// stay.
func TestTCPPolicyAndUDP(t *testing.T) {
	t.Parallel()
	early := to(protoTCP, vip2, vip2)
	early.state = 1
	for _, policy := range []TCPPolicy{KeepTCP, DropHalfOpenTCP, ResetTCP} {
		table := &fakeTable{flows: []flow{to(protoUDP, vip, a), to(protoTCP, vip, a), early}}
		mustClean(t, newCleaner(Options{TCP: policy, InAPI: gone}, table),
			proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))),
			proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, vip2), list(b))))
		wantFlows(t, table, to(protoTCP, vip, a), early)
	}
}

// Many endpoints of a Service that terminate cost little each, in every Clean until they end.
func TestManyTerminatingEndpoints(t *testing.T) {
	const count, limit = 1000, 2
	var all []string
	for i := range 2 * count {
		all = append(all, fmt.Sprintf("10.1.%d.%d:80", i/250, i%250))
	}
	old, new := proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), all)), proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), all[:count]))
	c := newCleaner(Options{TCP: ResetTCP, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { return true }}, &fakeTable{})
	mustClean(t, c, old, new)
	if got := testing.AllocsPerRun(3, func() { mustClean(t, c, new, new) }); got > limit*count || len(c.removed) != count {
		t.Errorf("%.0f allocations for %d endpoints, want at most %d each, of %d endpoints", got, len(c.removed), limit, count)
	}
}

// An endpoint that is added again keeps its flows, whatever InAPI returns then, and is no
// longer watched.
func TestRemovedEndpointIsAddedAgain(t *testing.T) {
	t.Parallel()
	with := func(servers ...string) proxy.Snapshot {
		return proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), servers))
	}
	inAPI := true
	table := &fakeTable{flows: []flow{to(protoTCP, vip, a)}}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { return inAPI }}, table)
	mustClean(t, c, with(a, b), with(b))
	inAPI = false
	mustClean(t, c, with(b), with(a, b))
	wantFlows(t, table, to(protoTCP, vip, a))
	if c.Due() {
		t.Error("with an endpoint that serves again: got Due true, want false")
	}
	mustClean(t, c, with(a, b), with(b))
	wantFlows(t, table)
}

// On kernels that ignore filters, a dump for replies also has TCP flows; those from a new
// frontend stay.
func TestTCPFlowsFromAFrontend(t *testing.T) {
	t.Parallel()
	client := netip.MustParseAddrPort("198.51.100.7:4000")
	from := flow{proto: protoTCP, source: netip.MustParseAddrPort(vip), dest: client, server: client, state: 3}
	reply := flow{proto: protoUDP, source: netip.MustParseAddrPort(vip), dest: client, server: client}
	table := &fakeTable{flows: []flow{from, reply}, deaf: true}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: gone}, table)
	mustClean(t, c, proxy.Snapshot{}, proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(a)), port("dns", v1.ProtocolUDP, list(vip), list(a))))
	wantFlows(t, table, from)
}

// If another Service takes over a frontend, flows to the endpoints of the old one and half-open
// flows from before the new one are removed.
func TestTCPFrontendMoves(t *testing.T) {
	t.Parallel()
	early, other := to(protoTCP, vip, vip), to(protoTCP, vip, b)
	early.state = 1
	table := &fakeTable{flows: []flow{early, to(protoTCP, vip, a), to(protoTCP, vip, x), other}}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: gone}, table)
	mustClean(t, c, proxy.NewSnapshot(node(), port("old", v1.ProtocolTCP, list(vip), list(a, x))), proxy.NewSnapshot(node(), port("new", v1.ProtocolTCP, list(vip), list(b))))
	wantFlows(t, table, other)
}

// Node ports are new at an address where they are served from now on.
func TestTCPAtNewNodePortAddress(t *testing.T) {
	t.Parallel()
	early := func(dest string) flow {
		f := to(protoTCP, dest, dest)
		f.state = 1
		return f
	}
	web := []*proxy.ServicePort{port("web", v1.ProtocolTCP, list(":30080"), list(a)), port("own", v1.ProtocolTCP, list("192.0.2.9:30080"), list(b))}
	kept := []flow{early("192.0.2.9:30080"), early("192.0.2.1:30081"), to(protoTCP, "192.0.2.1:30080", a), to(protoTCP, "192.0.2.77:30080", x)}
	table := &fakeTable{flows: append([]flow{early("192.0.2.1:30080")}, kept...)}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: gone}, table)
	before, after := node("192.0.2.77/32"), node("192.0.2.0/26")
	before.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.77")}
	mustClean(t, c, proxy.NewSnapshot(before, web...), proxy.NewSnapshot(after, web...))
	wantFlows(t, table, kept...)
}

// A new service range is swept for UDP and SCTP; TCP flows to new frontends are removed as ever.
func TestTCPAndNewRange(t *testing.T) {
	t.Parallel()
	early := to(protoTCP, vip, vip)
	early.state = 1
	table := &fakeTable{flows: []flow{early, to(protoUDP, "10.96.0.77:53", x), to(protoTCP, "10.96.0.77:53", x)}}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: gone, Foreign: isForeign}, table)
	mustClean(t, c, proxy.Snapshot{}, proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(a))))
	wantFlows(t, table, to(protoTCP, "10.96.0.77:53", x))
}
