package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

const (
	foreignIP = "10.96.0.66"
	vip, vip2 = "10.96.0.10:53", "192.0.2.200:53"
	a, b, x   = "10.0.0.2:5353", "10.0.0.3:5353", "10.0.0.99:5353"
)

// isForeign says that one address belongs to another proxy's Service.
func isForeign(a netip.Addr) bool { return a == netip.MustParseAddr(foreignIP) }

func draining(p *proxy.ServicePort, servers ...string) *proxy.ServicePort {
	for _, s := range servers {
		p.Draining = append(p.Draining, &endpoints.Endpoint{Addr: netip.MustParseAddrPort(s), Serving: true, Terminating: true})
	}
	return p
}

func list(s ...string) []string { return s }

// everywhere is a node with addresses whose node ports answer at all of them.
func everywhere(addrs ...string) *proxy.Node {
	n := &proxy.Node{NodePorts: proxy.NodePortAddresses{All: true}}
	for _, a := range addrs {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	return n
}

// from is a flow that began with an answer.
func from(proto protocol, source string) flow {
	client := netip.MustParseAddrPort("198.51.100.7:4000")
	return flow{proto: proto, source: netip.MustParseAddrPort(source), dest: client, server: client}
}

func TestClean(t *testing.T) {
	const udp, sctp, tcp = v1.ProtocolUDP, v1.ProtocolSCTP, v1.ProtocolTCP
	n := node("192.0.2.1/32")
	dns := func(frontends, servers []string) proxy.Snapshot {
		return proxy.NewSnapshot(n, port("dns", udp, frontends, servers))
	}
	foreign := []flow{
		to(protoUDP, "8.8.8.8:53", "8.8.8.8:53"),
		to(protoUDP, "8.8.8.8:30053", "8.8.8.8:30053"),
		to(protoUDP, "127.0.0.1:30053", "127.0.0.1:30053"),
		to(protoTCP, vip, x),
		to(protoUDP, "10.96.0.10:54", "10.96.0.10:54"),
		to(protoUDP, "192.0.2.1:7777", x), // another program's port of this node
	}
	for name, tc := range map[string]struct {
		old, new    proxy.Snapshot
		stale, kept []flow
		dumps       int
	}{
		"nothing changed": {old: dns(list(vip), list(a)), new: dns(list(vip), list(a)), kept: []flow{to(protoUDP, vip, x)}},
		"endpoint replaced": {
			old: dns(list(vip, ":30053"), list(a)), new: dns(list(vip, ":30053"), list(b)), dumps: 2,
			stale: []flow{to(protoUDP, vip, a), to(protoUDP, "192.0.2.1:30053", a)},
			kept:  []flow{to(protoUDP, vip, b), to(protoUDP, "192.0.2.1:30053", b), to(protoUDP, "192.0.2.9:30053", x)},
		},
		"endpoint added": {old: dns(list(vip), list(a)), new: dns(list(vip), list(a, b)), kept: []flow{to(protoUDP, vip, a)}},
		"scaled to zero": {old: dns(list(vip), list(a)), new: dns(list(vip), nil), dumps: 1, stale: []flow{to(protoUDP, vip, a)}},
		"service removed": {
			old: dns(list(vip, vip2), list(a)), new: proxy.NewSnapshot(n), dumps: 2,
			stale: []flow{to(protoUDP, vip, a), to(protoUDP, vip2, a)},
		},
		"flow that goes where it was sent outlives the frontend": {
			old: dns(list(vip2), list(a)), new: proxy.NewSnapshot(n), dumps: 1, kept: []flow{to(protoUDP, vip2, vip2)},
		},
		"VIP added": {
			old: dns(list(vip), list(a)), new: dns(list(vip, vip2), list(a)), dumps: 3, // one more, and once more since there was a flow
			stale: []flow{to(protoUDP, vip2, vip2), from(protoUDP, vip2)}, kept: []flow{to(protoUDP, vip, x)},
		},
		"node port added": {
			old: dns(list(vip), list(a)), new: dns(list(vip, ":30053"), list(a)), dumps: 2,
			stale: []flow{to(protoUDP, "192.0.2.1:30053", "192.0.2.1:30053")},
		},
		"node port removed": {
			old: dns(list(vip, ":30053"), list(a)), new: dns(list(vip), list(a)), dumps: 1,
			stale: []flow{to(protoUDP, "192.0.2.1:30053", a)}, kept: []flow{to(protoUDP, "192.0.2.9:30053", a)},
		},
		"VIP moved to another service": {
			old:   proxy.NewSnapshot(n, port("z", udp, list(vip2), list(a))),
			new:   proxy.NewSnapshot(n, port("b", udp, list(vip2), list(b))),
			dumps: 2, stale: []flow{to(protoUDP, vip2, a)}, kept: []flow{to(protoUDP, vip2, b)},
		},
		"node-port addresses changed": {
			old:   proxy.NewSnapshot(node("192.0.2.9/32"), port("dns", udp, list(":30053"), list(a))),
			new:   proxy.NewSnapshot(n, port("dns", udp, list(":30053"), list(a))),
			dumps: 2,
			stale: []flow{to(protoUDP, "192.0.2.9:30053", a), to(protoUDP, "192.0.2.1:30053", "192.0.2.1:30053")},
		},
		"external IP where node ports do not answer any more": {
			old:   proxy.NewSnapshot(node("192.0.2.9/32"), port("dns", udp, list(":30053"), list(a)), port("ext", udp, list("192.0.2.9:30053"), list(b))),
			new:   proxy.NewSnapshot(n, port("dns", udp, list(":30053"), list(a)), port("ext", udp, list("192.0.2.9:30053"), list(b))),
			dumps: 2, kept: []flow{to(protoUDP, "192.0.2.9:30053", b)},
		},
		"node has got an address": {
			old:   proxy.NewSnapshot(everywhere("192.0.2.1"), port("dns", udp, list(":30053"), list(a))),
			new:   proxy.NewSnapshot(everywhere("192.0.2.1", "192.0.2.77"), port("dns", udp, list(":30053"), list(a))),
			dumps: 2,
			stale: []flow{to(protoUDP, "192.0.2.77:30053", "192.0.2.77:30053")}, kept: []flow{to(protoUDP, "192.0.2.78:30053", x)},
		},
		"node has lost an address": {
			old:   proxy.NewSnapshot(everywhere("192.0.2.1", "192.0.2.77"), port("dns", udp, list(":30053"), list(a))),
			new:   proxy.NewSnapshot(everywhere("192.0.2.1"), port("dns", udp, list(":30053"), list(a))),
			dumps: 2,
			stale: []flow{to(protoUDP, "192.0.2.77:30053", a)}, kept: []flow{to(protoUDP, "192.0.2.1:30053", a)},
		},
		"node port at an external IP of the node": {
			old:   proxy.NewSnapshot(n, port("dns", udp, list(":53"), list(a)), port("ext", udp, list("192.0.2.1:53"), list(b))),
			new:   proxy.NewSnapshot(n, port("ext", udp, list("192.0.2.1:53"), list(b))),
			dumps: 1, kept: []flow{to(protoUDP, "192.0.2.1:53", b)},
		},
		"SCTP": {
			old: proxy.NewSnapshot(n, port("sig", sctp, list(vip), list(a))), new: proxy.NewSnapshot(n, port("sig", sctp, list(vip), list(b))),
			dumps: 1, stale: []flow{to(protoSCTP, vip, a)}, kept: []flow{to(protoUDP, vip, a)},
		},
		"TCP": {
			old: proxy.NewSnapshot(n, port("web", tcp, list(vip), list(a))), new: proxy.NewSnapshot(n, port("web", tcp, list(vip), list(b))),
			kept: []flow{to(protoTCP, vip, a)},
		},
		"takeover": {
			new: dns(list(vip, vip2, ":30053"), list(a)), dumps: 5, // UDP and SCTP of the service range, and answers from three frontends
			stale: []flow{
				to(protoUDP, vip, b), to(protoUDP, vip2, vip2), to(protoUDP, "192.0.2.1:30053", x),
				to(protoUDP, "10.96.0.77:53", x), to(protoSCTP, "10.96.0.77:53", x),
			},
			kept: []flow{to(protoUDP, vip, a), to(protoUDP, "203.0.113.5:53", x), to(protoUDP, foreignIP+":53", x)},
		},
		"service range that comes late": {
			old:   proxy.NewSnapshot(&proxy.Node{}, port("dns", udp, list(vip), list(a))),
			new:   proxy.NewSnapshot(node(), port("dns", udp, list(vip), list(a)), port("ntp", udp, list("10.96.0.11:123"), list(a))),
			dumps: 3, // UDP and SCTP of the range, and answers of what is new
			stale: []flow{to(protoUDP, "10.96.0.77:53", x), to(protoUDP, "10.96.0.10:99", x), to(protoSCTP, vip, x)},
			kept:  []flow{to(protoUDP, vip, a), to(protoUDP, vip, x), to(protoUDP, foreignIP+":53", x), to(protoUDP, "203.0.113.5:53", x)},
		},
		"endpoint drains": {
			old: dns(list(vip), list(a, b)), new: proxy.NewSnapshot(n, draining(port("dns", udp, list(vip), list(b)), a)),
			kept: []flow{to(protoUDP, vip, a), to(protoUDP, vip, b)},
		},
		"endpoint has drained": {
			old: proxy.NewSnapshot(n, draining(port("dns", udp, list(vip), list(b)), a)), new: dns(list(vip), list(b)), dumps: 1,
			stale: []flow{to(protoUDP, vip, a)}, kept: []flow{to(protoUDP, vip, b)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := append(append([]flow(nil), foreign...), tc.kept...)
			for _, deaf := range []bool{false, true} {
				table := &fakeTable{flows: append(append([]flow(nil), tc.stale...), want...), deaf: deaf}
				c := newCleaner(Options{Foreign: isForeign}, table)
				mustClean(t, c, tc.old, tc.new)
				if diff := cmp.Diff(want, table.flows, cmp.AllowUnexported(flow{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
					t.Errorf("kernel without filters %v: flows that were to be left (-want +got):\n%s", deaf, diff)
				}
				if table.dumps != tc.dumps || table.removes != len(tc.stale) {
					t.Errorf("%d dumps and %d removals, want %d and %d", table.dumps, table.removes, tc.dumps, len(tc.stale))
				}
			}
		})
	}
}

// Without being told what is foreign, nothing is touched that has no frontend.
func TestForeignUnknown(t *testing.T) {
	table := &fakeTable{flows: []flow{to(protoUDP, "10.96.0.77:53", x), to(protoUDP, vip, x)}}
	c := newCleaner(Options{}, table)
	mustClean(t, c, proxy.Snapshot{}, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))))
	if len(table.flows) != 1 || table.flows[0].dest != netip.MustParseAddrPort("10.96.0.77:53") {
		t.Errorf("flows %v left, want the one to an address without frontend", table.flows)
	}
}

// Both families have an account of their own.
func TestAccounts(t *testing.T) {
	var accounts []Account
	table := &fakeTable{flows: []flow{to(protoUDP, vip, a), to(protoUDP, "[fd00:96::10]:53", "[fd00::2]:53"), to(protoUDP, "[fd00:96::10]:53", "[fd00::3]:53")}}
	c := newCleaner(Options{Observe: func(a Account) { a.Duration = 0; accounts = append(accounts, a) }}, table)
	mustClean(t, c, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, vip2), nil), port("dns6", v1.ProtocolUDP, list("[fd00:96::10]:53"), nil)), proxy.NewSnapshot(node()))
	want := []Account{
		{Family: v1.IPv4Protocol, Frontends: 2, Dumps: 2, Flows: 1, Removed: 1},
		{Family: v1.IPv6Protocol, Frontends: 1, Dumps: 1, Flows: 2, Removed: 2},
	}
	if diff := cmp.Diff(want, accounts); diff != "" {
		t.Errorf("accounts (-want +got):\n%s", diff)
	}
}

// A flow that cannot be removed keeps no other from it, and all are counted.
func TestRemovalFails(t *testing.T) {
	broken := errors.New("broken")
	table := &fakeTable{err: broken}
	var want int
	for i := range 2 * maxNamed {
		f := to(protoUDP, []string{vip, vip2}[i%2], a)
		f.source = netip.AddrPortFrom(f.source.Addr(), uint16(i))
		table.flows = append(table.flows, f)
		want++
	}
	table.failing = func(f flow) bool { return f.source.Port() != 7 }
	c := newCleaner(Options{}, table)
	err := c.Clean(t.Context(), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, vip2), list(a))), proxy.NewSnapshot(node()))
	if !errors.Is(err, broken) || strings.Count(err.Error(), "remove flow") != want-1 {
		t.Errorf("error %v, want one that names %d flows", err, want-1)
	}
	if table.removes != want || len(table.flows) != want-1 {
		t.Errorf("%d flows were tried and %d left, want %d and %d", table.removes, len(table.flows), want, want-1)
	}
	table.flows = slices.Repeat(table.flows[:1], 3*maxNamed)
	err = c.Clean(t.Context(), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, vip2), list(a))), proxy.NewSnapshot(node()))
	if more := fmt.Sprintf("and %d flows more", 2*maxNamed); err == nil || !strings.Contains(err.Error(), more) {
		t.Errorf("error %v, want one that ends with %q", err, more)
	}
}

// Many frontends at once are one dump.
func TestManyFrontends(t *testing.T) {
	var before, after []*proxy.ServicePort
	table := &fakeTable{}
	for i := range 100 {
		front := fmt.Sprintf("10.96.1.%d:53", i)
		before = append(before, port(fmt.Sprint("s", i), v1.ProtocolUDP, list(front), list(a, b)))
		after = append(after, port(fmt.Sprint("s", i), v1.ProtocolUDP, list(front), list(b)))
		table.flows = append(table.flows, to(protoUDP, front, a), to(protoUDP, front, b))
	}
	var account Account
	c := newCleaner(Options{Observe: func(a Account) { account = a }}, table)
	mustClean(t, c, proxy.NewSnapshot(node(), before...), proxy.NewSnapshot(node(), after...))
	account.Duration = 0
	if want := (Account{Family: v1.IPv4Protocol, Frontends: 100, Dumps: 1, Flows: 200, Removed: 100}); account != want {
		t.Errorf("account %+v, want %+v", account, want)
	}
}

func TestInterruptedDump(t *testing.T) {
	n := node()
	old, new := proxy.NewSnapshot(n, port("dns", v1.ProtocolUDP, list(vip), list(a))), proxy.NewSnapshot(n)
	table := &fakeTable{flows: []flow{to(protoUDP, vip, a)}, interrupts: maxDumps - 1}
	mustClean(t, newCleaner(Options{}, table), old, new)
	if table.dumps != maxDumps || table.removes != 1 {
		t.Errorf("%d dumps, %d removals, want %d and 1", table.dumps, table.removes, maxDumps)
	}
	table.interrupts = maxDumps
	if err := newCleaner(Options{}, table).Clean(t.Context(), old, new); !errors.Is(err, errInterrupted) {
		t.Errorf("error %v, want %v", err, errInterrupted)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newCleaner(Options{}, table).Clean(ctx, old, new); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

func TestTCPPolicies(t *testing.T) {
	n := node()
	old, new := proxy.NewSnapshot(n, port("web", v1.ProtocolTCP, list(vip), list(a, b))), proxy.NewSnapshot(n, port("web", v1.ProtocolTCP, list(vip), list(b)))
	half, open, live := to(protoTCP, vip, a), to(protoTCP, vip, a), to(protoTCP, vip, b)
	half.state, open.state = 1, 3
	open.source = netip.MustParseAddrPort("198.51.100.8:1")
	live.source = netip.MustParseAddrPort("198.51.100.9:1")
	for name, tc := range map[string]struct {
		policy TCPPolicy
		left   int
	}{"keep": {KeepTCP, 3}, "half open": {DropHalfOpenTCP, 2}, "reset": {ResetTCP, 1}} {
		t.Run(name, func(t *testing.T) {
			inAPI := true
			table := &fakeTable{flows: []flow{half, open, live}}
			c := newCleaner(Options{TCP: tc.policy, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { return inAPI }}, table)
			mustClean(t, c, old, new)
			if len(table.flows) != 3 || table.dumps != 0 || c.isDue() {
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
