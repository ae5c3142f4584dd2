package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

func TestTCPPolicies(t *testing.T) {
	n := node()
	old, new := proxy.NewSnapshot(n, port("web", v1.ProtocolTCP, list(vip), list(a, b))), proxy.NewSnapshot(n, port("web", v1.ProtocolTCP, list(vip), list(b)))
	half, open, live := to(protoTCP, vip, a), to(protoTCP, vip, a), to(protoTCP, vip, b)
	half.state, open.state = 1, 3
	open.source = netip.MustParseAddrPort("198.51.100.8:1")
	live.source = netip.MustParseAddrPort("198.51.100.9:1")
	untranslated := to(protoTCP, vip, vip) // somebody else's: the frontend is not new
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
			if len(table.flows) != 4 || table.dumps != 0 || c.isDue() {
				t.Fatalf("the endpoint is in the API: %d flows left, %d dumps, due %v", len(table.flows), table.dumps, c.isDue())
			}
			inAPI = false
			if want := tc.policy != KeepTCP; c.isDue() != want {
				t.Errorf("due is %v, want %v", c.isDue(), want)
			}
			mustClean(t, c, new, new)
			if len(table.flows) != tc.left || c.isDue() {
				t.Errorf("%d flows left, want %d; due is %v", len(table.flows), tc.left, c.isDue())
			}
			dumps := table.dumps
			if mustClean(t, c, new, new); table.dumps != dumps {
				t.Errorf("%d dumps more without reason", table.dumps-dumps)
			}
		})
	}
	if _, err := New(Options{TCP: ResetTCP}); err == nil {
		t.Error("New took a policy for TCP without InAPI")
	}
}

// Attempts to connect to a frontend before it was there go, so that the next ones
// get through; nothing that somebody has answered does.
func TestTCPFlowsBeforeTheirFrontend(t *testing.T) {
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
		in(1, "10.96.0.77:53", "10.96.0.77:53"),           // of nobody
		in(9, vip, vip),                                   // both began at the same time
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
		"new Service":             {DropHalfOpenTCP, none, full, halfOpen, 2},
		"new Service, reset":      {ResetTCP, none, full, halfOpen, 2},
		"nothing known":           {DropHalfOpenTCP, proxy.Snapshot{}, full, halfOpen, 2},
		"new node port":           {DropHalfOpenTCP, web(vip), full, halfOpen[2:3], 1},
		"new endpoint":            {DropHalfOpenTCP, proxy.NewSnapshot(n, port("web", v1.ProtocolTCP, list(vip, ":30053"), list(b))), full, nil, 0},
		"new Service, left alone": {KeepTCP, none, full, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			table := &fakeTable{flows: slices.Clone(flows)}
			c := newCleaner(Options{TCP: tc.policy, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { return true }}, table)
			mustClean(t, c, tc.old, tc.new)
			for _, f := range flows {
				same := func(o flow) bool { return o.source == f.source && o.dest == f.dest && o.server == f.server }
				if got, want := !slices.ContainsFunc(table.flows, same), slices.ContainsFunc(tc.gone, same); got != want {
					t.Errorf("the flow to %v, served by %v, in state %d: removed is %v, want %v", f.dest, f.server, f.state, got, want)
				}
			}
			if table.dumps != tc.dumps {
				t.Errorf("%d dumps, want %d", table.dumps, tc.dumps)
			}
		})
	}
}

// An endpoint that leaves the API is found whenever that is, also when nothing is
// taken for granted, and between two looks at the API.
func TestSparedEndpointIsNotForgotten(t *testing.T) {
	old, new := proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(a, b))), proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(b)))
	for name, from := range map[string]proxy.Snapshot{"resync": {}, "change": new} {
		t.Run(name, func(t *testing.T) {
			asked, leaves := 0, 2 // times that the API was asked, and after which the endpoint leaves
			inAPI := func(proxy.ServicePortName, netip.AddrPort) bool { asked++; return asked <= leaves }
			table := &fakeTable{flows: []flow{to(protoTCP, vip, a)}}
			c := newCleaner(Options{TCP: ResetTCP, InAPI: inAPI}, table)
			mustClean(t, c, old, new)
			leaves = asked
			mustClean(t, c, from, new)
			if len(table.flows) != 0 || c.isDue() {
				t.Errorf("%d flows left, due is %v, want none and false", len(table.flows), c.isDue())
			}
		})
	}
	t.Run("race", func(t *testing.T) {
		asked := 0
		table := &fakeTable{flows: []flow{to(protoTCP, vip, a)}}
		c := newCleaner(Options{TCP: ResetTCP, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { asked++; return asked <= 1 }}, table)
		mustClean(t, c, old, new)
		mustClean(t, c, new, new)
		if len(table.flows) != 0 {
			t.Error("an endpoint that left the API during a Clean keeps its flows for ever")
		}
	})
}

// With their Service, all endpoints leave, and so do the TCP flows to them.
func TestTCPOfAServiceThatGoes(t *testing.T) {
	web := port("web", v1.ProtocolTCP, list(vip), list(a))
	table := &fakeTable{flows: []flow{to(protoTCP, vip, a), to(protoTCP, vip, x), to(protoTCP, vip2, a)}}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: gone}, table)
	mustClean(t, c, proxy.NewSnapshot(node(), web), proxy.NewSnapshot(node()))
	if len(table.flows) != 2 || table.flows[0].server == to(protoTCP, vip, a).server {
		t.Errorf("flows %v left, want all but the one to the endpoint that is gone", table.flows)
	}
}

// gone says that no endpoint is in the API.
func gone(proxy.ServicePortName, netip.AddrPort) bool { return false }

// wantFlows compares the flows that a table has.
func wantFlows(t *testing.T, table *fakeTable, want ...flow) {
	t.Helper()
	if diff := cmp.Diff(want, table.flows, cmpopts.EquateEmpty(), cmp.AllowUnexported(flow{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("flows that were to be left (-want +got):\n%s", diff)
	}
}

// Of several endpoints that leave at once, all flows go, at whatever frontend they are,
// and each is asked for by its name and address.
func TestTCPOfSeveralEndpoints(t *testing.T) {
	old, new := port("web", v1.ProtocolTCP, list(vip, vip2), list(a, b, x)), port("web", v1.ProtocolTCP, list(vip, vip2), list(x))
	table := &fakeTable{flows: []flow{to(protoTCP, vip, a), to(protoTCP, vip2, a), to(protoTCP, vip, b), to(protoTCP, vip2, b), to(protoTCP, vip, x)}}
	asked := map[string]bool{}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: func(name proxy.ServicePortName, at netip.AddrPort) bool {
		asked[name.Name+" "+at.String()] = true
		return false
	}}, table)
	mustClean(t, c, proxy.NewSnapshot(node(), old), proxy.NewSnapshot(node(), new))
	wantFlows(t, table, to(protoTCP, vip, x))
	if diff := cmp.Diff(map[string]bool{"web " + a: true, "web " + b: true}, asked); diff != "" {
		t.Errorf("endpoints that the API was asked for (-want +got):\n%s", diff)
	}
	if c.isDue() {
		t.Error("after the flows are removed, there is still something due")
	}
}

// What is due is asked for by name and address, too.
func TestTCPIsDue(t *testing.T) {
	asked := map[string]bool{}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: func(name proxy.ServicePortName, at netip.AddrPort) bool {
		asked[name.Name+" "+at.String()] = true
		return true
	}}, &fakeTable{})
	mustClean(t, c, proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(a, b))), proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(b))))
	clear(asked)
	isDue := c.isDue()
	if diff := cmp.Diff(map[string]bool{"web " + a: true}, asked); diff != "" || isDue {
		t.Errorf("due: %v, want false; endpoints that the API was asked for (-want +got):\n%s", isDue, diff)
	}
}

// The policies for TCP concern TCP alone: UDP is cleaned as ever, and TCP flows that only
// look like those of a Service of UDP stay.
func TestTCPPolicyAndUDP(t *testing.T) {
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

// An endpoint that comes back keeps its flows, whatever the API says by then, and is
// spared no more.
func TestSparedEndpointComesBack(t *testing.T) {
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
	if c.isDue() {
		t.Error("an endpoint that serves again is due")
	}
	mustClean(t, c, with(a, b), with(b))
	wantFlows(t, table)
}

// Where one Service follows another, both the endpoints of the one and who came before
// the other matter.
func TestTCPFrontendMoves(t *testing.T) {
	early, other := to(protoTCP, vip, vip), to(protoTCP, vip, b)
	early.state = 1
	table := &fakeTable{flows: []flow{early, to(protoTCP, vip, a), to(protoTCP, vip, x), other}}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: gone}, table)
	mustClean(t, c, proxy.NewSnapshot(node(), port("old", v1.ProtocolTCP, list(vip), list(a, x))), proxy.NewSnapshot(node(), port("new", v1.ProtocolTCP, list(vip), list(b))))
	wantFlows(t, table, other)
}

// Node ports are new at an address that they answer at from now on.
func TestTCPAtNewNodePortAddress(t *testing.T) {
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

// A service range that nobody has looked at is one of UDP and SCTP, and does not keep TCP
// from being looked at.
func TestTCPAndNewRange(t *testing.T) {
	early := to(protoTCP, vip, vip)
	early.state = 1
	table := &fakeTable{flows: []flow{early, to(protoUDP, "10.96.0.77:53", x), to(protoTCP, "10.96.0.77:53", x)}}
	c := newCleaner(Options{TCP: ResetTCP, InAPI: gone, Foreign: isForeign}, table)
	mustClean(t, c, proxy.Snapshot{}, proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(a))))
	wantFlows(t, table, to(protoTCP, "10.96.0.77:53", x))
}
