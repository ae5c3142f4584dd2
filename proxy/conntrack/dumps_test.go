package conntrack

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func mustFollow(t *testing.T, c *Cleaner, held proxy.Snapshot, full bool) {
	t.Helper()
	testenv.NoError(t, c.Follow(t.Context(), held, full))
}

// When a Service is removed after its last endpoint, there is nothing to look for, since its flows
// were removed with that endpoint. With an endpoint that drains there may be flows.
func TestRemovedAfterItsEndpoints(t *testing.T) {
	t.Parallel()
	none := proxy.NewSnapshot(node())
	empty := port("dns", v1.ProtocolUDP, list(vip, vip2), nil)
	for name, tc := range map[string]struct {
		last  *proxy.ServicePort
		full  bool
		dumps int
	}{
		"no endpoint":                            {empty, false, 0},
		"no endpoint, dataplane may have lost":   {empty, true, 2},
		"an endpoint drains":                     {draining(port("dns", v1.ProtocolUDP, list(vip, vip2), nil), a), false, 2},
		"endpoint":                               {port("dns", v1.ProtocolUDP, list(vip, vip2), list(a)), false, 2},
		"a frontend less, and still no endpoint": {port("ntp", v1.ProtocolUDP, list(vip), nil), false, 0},
	} {
		table := &fakeTable{}
		c := newCleaner(Options{}, table)
		mustFollow(t, c, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, vip2), list(a, b))), true)
		mustFollow(t, c, proxy.NewSnapshot(node(), tc.last), false)
		table.dumps = 0
		mustFollow(t, c, none, tc.full)
		if table.dumps != tc.dumps {
			t.Errorf("%s: got %d dumps, want %d", name, table.dumps, tc.dumps)
		}
	}
}

// After a dataplane that may have held something else, flows to a removed frontend are removed
// although it had no endpoint; and so are flows that were offloaded, once they are not.
func TestRemovedButUnsure(t *testing.T) {
	t.Parallel()
	empty := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), nil))
	t.Run("lost", func(t *testing.T) {
		table := &fakeTable{}
		c := newCleaner(Options{}, table)
		mustFollow(t, c, empty, true)
		table.flows = []flow{to(protoUDP, vip, a)}
		mustFollow(t, c, proxy.NewSnapshot(node()), true)
		wantFlows(t, table)
	})
	t.Run("offloaded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			table := &fakeTable{flows: []flow{to(protoUDP, vip, a)}, err: errOffloaded}
			c := newCleaner(Options{}, table)
			mustFollow(t, c, empty, true)
			table.err = nil
			time.Sleep(offloadTime / 2)
			mustFollow(t, c, proxy.NewSnapshot(node()), false)
			wantFlows(t, table)
		})
	})
	t.Run("failed", func(t *testing.T) {
		broken := errors.New("broken")
		table := &fakeTable{}
		c := newCleaner(Options{}, table)
		mustFollow(t, c, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))), true)
		table.flows, table.err = []flow{to(protoUDP, vip, a)}, broken
		if err := c.Follow(t.Context(), empty, false); !errors.Is(err, broken) {
			t.Errorf("got error %v, want %v", err, broken)
		}
		table.err = nil
		mustFollow(t, c, proxy.NewSnapshot(node()), false)
		wantFlows(t, table)
	})
}

// Once a dump has returned few flows of a protocol, one serves all changed frontends, with the replies
// from them. If it has returned most of the table, each frontend costs a dump.
func TestOneDumpServesAll(t *testing.T) {
	t.Parallel()
	service := port("sig", v1.ProtocolUDP, list("10.96.0.30:30", ":30030"), list(a))
	reply, near := from(protoUDP, "10.96.0.30:30"), to(protoUDP, vip2, x)
	for _, tc := range []struct{ others, dumps int }{{1000, 1}, {1, 4}} {
		kept := append(slices.Repeat([]flow{to(protoUDP, "8.8.8.8:53", "8.8.8.8:53")}, 20), near)
		table := &fakeTable{others: tc.others, flows: append([]flow{to(protoUDP, "10.96.0.30:30", x)}, kept...)}
		c := newCleaner(Options{Foreign: isForeign}, table)
		mustFollow(t, c, proxy.NewSnapshot(node()), true) // dumps the service range
		table.flows = append(table.flows, to(protoUDP, "10.96.0.30:30", x), to(protoUDP, "192.0.2.1:30030", x))
		table.dumps = 0
		n := node("192.0.2.0/24")
		mustFollow(t, c, proxy.NewSnapshot(n, service), false)
		if table.dumps != tc.dumps {
			t.Errorf("%d other entries: got %d dumps, want %d", tc.others, table.dumps, tc.dumps)
		}
		wantFlows(t, table, kept...)
		table.flows = append(table.flows, reply)
		mustFollow(t, c, proxy.NewSnapshot(n), false)
		mustFollow(t, c, proxy.NewSnapshot(n, service), false)
		wantFlows(t, table, kept...)
	}
}

// An empty table is not dumped, and one whose entries cannot be counted is an error.
func TestEntriesAreCounted(t *testing.T) {
	t.Parallel()
	old, new := proxy.NewSnapshot(node()), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
	table := &fakeTable{others: -1}
	mustClean(t, newCleaner(Options{}, table), old, new)
	if table.dumps != 0 {
		t.Errorf("empty table: got %d dumps, want none", table.dumps)
	}
	broken := errors.New("broken")
	if err := newCleaner(Options{}, &fakeTable{uncounted: broken}).Clean(t.Context(), old, new); !errors.Is(err, broken) {
		t.Errorf("entries cannot be counted: got error %v, want %v", err, broken)
	}
}
