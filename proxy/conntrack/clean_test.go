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

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

const (
	foreignIP = "10.96.0.66"
	vip, vip2 = "10.96.0.10:53", "192.0.2.200:53"
	a, b, x   = "10.0.0.2:5353", "10.0.0.3:5353", "10.0.0.99:5353"
)

// isForeign reports whether an address is that of another proxy's Service.
func isForeign(a netip.Addr) bool { return a == netip.MustParseAddr(foreignIP) }

func draining(p *proxy.ServicePort, servers ...string) *proxy.ServicePort {
	p.Draining = snapshots.Endpoints(objects.Many(len(servers), func(i int) string { return servers[i] + " T" })...)
	return p
}

func list(s ...string) []string { return s }

// from returns a flow that began with a reply.
func from(proto protocol, source string) flow {
	client := netip.MustParseAddrPort("198.51.100.7:4000")
	return flow{proto: proto, source: netip.MustParseAddrPort(source), dest: client, server: client}
}

func TestClean(t *testing.T) { //nolint:funlen // a table
	t.Parallel()
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
			old: dns(list(vip, ":30053"), list(a)), new: dns(list(vip, ":30053"), list(b)), dumps: 1,
			stale: []flow{to(protoUDP, vip, a), to(protoUDP, "192.0.2.1:30053", a)},
			kept:  []flow{to(protoUDP, vip, b), to(protoUDP, "192.0.2.1:30053", b), to(protoUDP, "192.0.2.9:30053", x)},
		},
		"endpoint added": {old: dns(list(vip), list(a)), new: dns(list(vip), list(a, b)), kept: []flow{to(protoUDP, vip, a)}},
		"endpoint added, and a VIP": {
			old: dns(list(vip), list(a)), new: dns(list(vip, vip2), list(a, b)), dumps: 2,
			stale: []flow{to(protoUDP, vip2, vip2)}, kept: []flow{to(protoUDP, vip, a)},
		},
		"first endpoint": {old: dns(list(vip), nil), new: dns(list(vip), list(a)), kept: []flow{to(protoUDP, vip, vip)}},
		"scaled to zero": {old: dns(list(vip), list(a)), new: dns(list(vip), nil), dumps: 1, stale: []flow{to(protoUDP, vip, a)}},
		"service removed": {
			old: dns(list(vip, vip2), list(a)), new: proxy.NewSnapshot(n), dumps: 1,
			stale: []flow{to(protoUDP, vip, a), to(protoUDP, vip2, a)},
		},
		"untranslated flow stays after its frontend": {
			old: dns(list(vip2), list(a)), new: proxy.NewSnapshot(n), dumps: 1, kept: []flow{to(protoUDP, vip2, vip2)},
		},
		"VIP added": {
			old: dns(list(vip), list(a)), new: dns(list(vip, vip2), list(a)), dumps: 2, // the second finds no further reply
			stale: []flow{to(protoUDP, vip2, vip2), from(protoUDP, vip2)}, kept: []flow{to(protoUDP, vip, a)},
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
			dumps: 1, stale: []flow{to(protoUDP, vip2, a)}, kept: []flow{to(protoUDP, vip2, b)},
		},
		"node-port addresses changed": {
			old:   proxy.NewSnapshot(node("192.0.2.9/32"), port("dns", udp, list(":30053"), list(a))),
			new:   proxy.NewSnapshot(n, port("dns", udp, list(":30053"), list(a))),
			dumps: 2,
			stale: []flow{to(protoUDP, "192.0.2.9:30053", a), to(protoUDP, "192.0.2.1:30053", "192.0.2.1:30053")},
			kept:  []flow{to(protoUDP, "192.0.2.9:30053", "192.0.2.9:30053")}, // another program may serve there
		},
		"node-port addresses changed, and there is TCP": {
			old:   proxy.NewSnapshot(node("192.0.2.9/32"), port("dns", udp, list(":30053"), list(a)), port("web", tcp, list(":30053"), list(a))),
			new:   proxy.NewSnapshot(n, port("dns", udp, list(":30053"), list(a)), port("web", tcp, list(":30053"), list(a))),
			dumps: 1,
			stale: []flow{to(protoUDP, "192.0.2.9:30053", a)}, kept: []flow{to(protoTCP, "192.0.2.9:30053", a), to(protoTCP, "192.0.2.1:30053", x)},
		},
		"external IP where node ports are no longer served": {
			old:   proxy.NewSnapshot(node("192.0.2.9/32"), port("dns", udp, list(":30053"), list(a)), port("ext", udp, list("192.0.2.9:30053"), list(b))),
			new:   proxy.NewSnapshot(n, port("dns", udp, list(":30053"), list(a)), port("ext", udp, list("192.0.2.9:30053"), list(b))),
			dumps: 1, kept: []flow{to(protoUDP, "192.0.2.9:30053", b)},
		},
		"another node, the same node ports": {
			old: dns(list(":30053"), list(a)), dumps: 0, kept: []flow{to(protoUDP, "192.0.2.1:30053", x)},
			new: proxy.NewSnapshot(node("192.0.2.1/32"), port("dns", udp, list(":30053"), list(a))),
		},
		"UDP and SCTP at once": {
			old:   proxy.NewSnapshot(n, port("dns", udp, list(vip), list(a)), port("sig", sctp, list(vip), list(a))),
			new:   proxy.NewSnapshot(n, port("dns", udp, list(vip), list(b)), port("sig", sctp, list(vip), list(b))),
			dumps: 2, stale: []flow{to(protoUDP, vip, a), to(protoSCTP, vip, a)}, kept: []flow{to(protoUDP, vip, b)},
		},
		"node has a new address": {
			old:   proxy.NewSnapshot(snapshots.Node("192.0.2.1"), port("dns", udp, list(":30053"), list(a))),
			new:   proxy.NewSnapshot(snapshots.Node("192.0.2.1", "192.0.2.77"), port("dns", udp, list(":30053"), list(a))),
			dumps: 2,
			stale: []flow{to(protoUDP, "192.0.2.77:30053", "192.0.2.77:30053")}, kept: []flow{to(protoUDP, "192.0.2.78:30053", x)},
		},
		"node has lost an address": {
			old:   proxy.NewSnapshot(snapshots.Node("192.0.2.1", "192.0.2.77"), port("dns", udp, list(":30053"), list(a))),
			new:   proxy.NewSnapshot(snapshots.Node("192.0.2.1"), port("dns", udp, list(":30053"), list(a))),
			dumps: 1,
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
			new: dns(list(vip, vip2, ":30053"), list(a)), dumps: 3, // UDP and SCTP, and UDP again for further replies
			stale: []flow{
				to(protoUDP, vip, b), to(protoUDP, vip2, vip2), to(protoUDP, "192.0.2.1:30053", x),
				to(protoUDP, "10.96.0.77:53", x), to(protoSCTP, "10.96.0.77:53", x),
			},
			kept: []flow{to(protoUDP, vip, a), to(protoUDP, "203.0.113.5:53", x), to(protoUDP, foreignIP+":53", x)},
		},
		"takeover of two ranges": {
			new: proxy.NewSnapshot(&proxy.Node{ServiceCIDRs: snapshots.Prefixes("10.96.0.0/16", "10.97.0.0/16")},
				port("dns", udp, list("10.96.0.9:53"), list(a)), port("web", tcp, list("10.96.0.77:53"), list(a))),
			dumps: 2, // UDP and SCTP
			stale: []flow{to(protoUDP, "10.96.0.77:53", x), to(protoSCTP, "10.97.0.77:53", x)}, kept: []flow{to(protoUDP, "10.98.0.77:53", x)},
		},
		"new service range": {
			old:   proxy.NewSnapshot(&proxy.Node{}, port("dns", udp, list(vip), list(a))),
			new:   proxy.NewSnapshot(node(), port("dns", udp, list(vip), list(a)), port("ntp", udp, list("10.96.0.11:123"), list(a))),
			dumps: 2, // UDP and SCTP
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
					t.Errorf("filters ignored %v: flows left (-want +got):\n%s", deaf, diff)
				}
				if table.dumps != tc.dumps || table.removes != len(tc.stale) {
					t.Errorf("filters ignored %v: got %d dumps and %d removals, want %d and %d", deaf, table.dumps, table.removes, tc.dumps, len(tc.stale))
				}
			}
		})
	}
}

// Without Options.Foreign, flows to addresses without a frontend stay.
func TestForeignUnknown(t *testing.T) {
	t.Parallel()
	table := &fakeTable{flows: []flow{to(protoUDP, "10.96.0.77:53", x), to(protoUDP, vip, x)}}
	c := newCleaner(Options{}, table)
	mustClean(t, c, proxy.Snapshot{}, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))))
	if len(table.flows) != 1 || table.flows[0].dest != netip.MustParseAddrPort("10.96.0.77:53") {
		t.Errorf("got flows %v left, want the one to an address without a frontend", table.flows)
	}
}

// Each family has an Account of its own.
func TestAccounts(t *testing.T) {
	t.Parallel()
	var accounts []Account
	table := &fakeTable{flows: []flow{to(protoUDP, vip, a), to(protoUDP, "[fd00:96::10]:53", "[fd00::2]:53"), to(protoUDP, "[fd00:96::10]:53", "[fd00::3]:53")}}
	c := newCleaner(Options{Observe: func(a Account) { a.Duration = 0; accounts = append(accounts, a) }}, table)
	mustClean(t, c, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, vip2), nil), port("dns6", v1.ProtocolUDP, list("[fd00:96::10]:53"), nil)), proxy.NewSnapshot(node()))
	want := []Account{
		{Family: v1.IPv4Protocol, Frontends: 2, Dumps: 1, Flows: 1, Removed: 1},
		{Family: v1.IPv6Protocol, Frontends: 1, Dumps: 1, Flows: 2, Removed: 2},
	}
	testenv.Same(t, want, accounts, "accounts")
}

// If a flow cannot be removed, the others are, and the error counts all that are left.
func TestRemovalFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	table := &fakeTable{err: broken}
	var want int
	for i := range maxNamed {
		f := to(protoUDP, []string{vip, vip2}[i%2], a)
		f.source = netip.AddrPortFrom(f.source.Addr(), uint16(i))
		table.flows = append(table.flows, f)
		want++
	}
	table.failing = func(f flow) bool { return f.source.Port() != 7 }
	c := newCleaner(Options{}, table)
	err := c.Clean(t.Context(), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, vip2), list(a))), proxy.NewSnapshot(node()))
	if !errors.Is(err, broken) || strings.Count(err.Error(), "remove flow") != want-1 {
		t.Errorf("got error %v, want one that names %d flows", err, want-1)
	}
	if table.removes != want || len(table.flows) != want-1 {
		t.Errorf("got %d removals and %d flows left, want %d and %d", table.removes, len(table.flows), want, want-1)
	}
	table.flows = slices.Repeat(table.flows[:1], 3*maxNamed)
	err = c.Clean(t.Context(), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, vip2), list(a))), proxy.NewSnapshot(node()))
	if more := fmt.Sprintf("and %d more flows", 2*maxNamed); err == nil || !strings.Contains(err.Error(), more) {
		t.Errorf("got error %v, want one with %q", err, more)
	}
}

// Many changed frontends need one dump.
func TestManyFrontends(t *testing.T) {
	t.Parallel()
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
		t.Errorf("got account %+v, want %+v", account, want)
	}
}

func TestInterruptedDump(t *testing.T) {
	t.Parallel()
	n := node()
	old, new := proxy.NewSnapshot(n, port("dns", v1.ProtocolUDP, list(vip), list(a))), proxy.NewSnapshot(n)
	table := &fakeTable{flows: []flow{to(protoUDP, vip, a)}, interrupts: maxDumps - 1}
	mustClean(t, newCleaner(Options{}, table), old, new)
	if table.dumps != maxDumps || table.removes != 1 {
		t.Errorf("got %d dumps and %d removals, want %d and 1", table.dumps, table.removes, maxDumps)
	}
	table.interrupts = maxDumps
	if err := newCleaner(Options{}, table).Clean(t.Context(), old, new); !errors.Is(err, errInterrupted) {
		t.Errorf("got error %v, want %v", err, errInterrupted)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newCleaner(Options{}, table).Clean(ctx, old, new); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

// left returns service ports as FoundFrontends of [proxy.Abilities] does.
func left(proto v1.Protocol, fronts ...string) []*proxy.ServicePort {
	return []*proxy.ServicePort{port("", proto, fronts, nil)}
}

// Flows to frontends that an earlier process has left, and that are not held, are removed, also
// if the first cleaning fails. Flows of other programs stay.
func TestFoundFrontends(t *testing.T) {
	t.Parallel()
	const external = "203.0.113.9:53"
	broken := errors.New("broken")
	held := proxy.NewSnapshot(node("192.0.2.1/32"), port("dns", v1.ProtocolUDP, list(vip), list(a)))
	kept := []flow{
		to(protoUDP, vip, a), to(protoUDP, "203.0.113.10:53", x), to(protoSCTP, external, x), to(protoUDP, external, external),
		to(protoUDP, "192.0.2.9:30053", x),
	}
	stale := []flow{to(protoUDP, vip, x), to(protoUDP, external, x), to(protoUDP, "192.0.2.1:30053", x), to(protoSCTP, "203.0.113.11:7", x)}
	table := &fakeTable{flows: slices.Concat(stale, kept), deaf: true, err: broken}
	c := newCleaner(Options{}, table)
	c.AddFrontends(append(left(v1.ProtocolUDP, vip, external, ":30053"), left(v1.ProtocolSCTP, "203.0.113.11:7")...))
	if err := c.RemoveStale(t.Context(), held, true); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
	c.AddFrontends(left(v1.ProtocolUDP, vip)) // The next full Apply finds what is held.
	table.err = nil
	mustFollow(t, c, held, true)
	wantFlows(t, table, kept...)

	table.flows = append(table.flows, to(protoUDP, external, x)) // by another program
	mustFollow(t, c, held, true)
	wantFlows(t, table, append(kept, to(protoUDP, external, x))...)
}

// The same frontend in another Service is held.
func TestFoundFrontendOfAnotherService(t *testing.T) {
	t.Parallel()
	flows := []flow{to(protoUDP, vip2, a)}
	table := &fakeTable{flows: slices.Clone(flows)}
	c := newCleaner(Options{}, table)
	c.AddFrontends(left(v1.ProtocolUDP, vip2))
	n := node()
	n.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	mustFollow(t, c, proxy.NewSnapshot(n, port("other", v1.ProtocolUDP, list(vip2), list(a))), true)
	wantFlows(t, table, flows...)
}
