package conntrack

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// An error of one IP family is returned, and the other family is cleaned.
func TestOneFamilyFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	const vip6 = "[fd00:96::10]:53"
	old := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), nil), port("dns6", v1.ProtocolUDP, list(vip6), nil))
	for _, failing := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		table := &fakeTable{undumped: func(f filter) error {
			if f.family == failing {
				return broken
			}
			return nil
		}}
		accounts := map[v1.IPFamily]error{}
		c := newCleaner(Options{Observe: func(a Account) { accounts[a.Family] = a.Err }}, table)
		if err := c.Clean(t.Context(), old, proxy.NewSnapshot(node())); !errors.Is(err, broken) {
			t.Errorf("%s fails: got error %v, want %v", failing, err, broken)
		}
		for family, err := range accounts {
			if (err != nil) != (family == failing) {
				t.Errorf("%s fails: got error %v in the account of %s", failing, err, family)
			}
		}
		if len(accounts) != 2 {
			t.Errorf("%s fails: got accounts %v, want one of each family", failing, accounts)
		}
	}
}

// A failed dump of replies is an error: there may be some.
func TestRepliesCannotBeDumped(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	table := &fakeTable{flows: []flow{to(protoUDP, vip, vip)}}
	table.removed = func() { table.undumped = func(filter) error { return broken } }
	err := newCleaner(Options{}, table).Clean(t.Context(), proxy.NewSnapshot(node()), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))))
	if !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
}

// Stale flows that a dump returned before it failed are removed.
func TestFlowsOfABrokenDump(t *testing.T) {
	t.Parallel()
	table := &fakeTable{flows: []flow{to(protoUDP, vip, a), to(protoUDP, vip, b)}, interrupts: maxDumps}
	err := newCleaner(Options{}, table).Clean(t.Context(), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), nil)), proxy.NewSnapshot(node()))
	if !errors.Is(err, errInterrupted) || table.removes != 2 {
		t.Errorf("got %d removals and error %v, want 2 and %v", table.removes, err, errInterrupted)
	}
	wantFlows(t, table)
}

// Clean ends with its context, after one more removal at most; its error says so once.
func TestCleanStops(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ removals, flows int }{{0, 2}, {1, 2}, {1, 1}} {
		removals := c.removals
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if removals == 0 {
			cancel()
		}
		// With one flow at each address, all that was found is removed by then, and the
		// flows to the other address have not been dumped.
		table := &fakeTable{flows: slices.Concat([]flow{to(protoUDP, vip, a), to(protoUDP, vip, b)}[:c.flows], []flow{to(protoUDP, vip2, a)}), removed: cancel}
		err := newCleaner(Options{}, table).Clean(ctx, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, vip2), nil)), proxy.NewSnapshot(node()))
		if !errors.Is(err, context.Canceled) || table.removes != removals || table.dumps > removals*2 {
			t.Errorf("got %d removals, %d dumps and error %v, want %d removals, at most %d dumps and %v",
				table.removes, table.dumps, err, removals, removals*2, context.Canceled)
		}
		if err != nil && strings.Count(err.Error(), context.Canceled.Error()) != 1 {
			t.Errorf("got error %q, want %q in it once", err, context.Canceled)
		}
	}
}

// With the zero new Snapshot, no flow is stale.
func TestNothingKnown(t *testing.T) {
	t.Parallel()
	table := &fakeTable{flows: []flow{to(protoUDP, vip, x)}}
	mustClean(t, newCleaner(Options{}, table), proxy.NewSnapshot(node("192.0.2.1/32"), port("dns", v1.ProtocolUDP, list(vip), list(a))), proxy.Snapshot{})
	wantFlows(t, table, to(protoUDP, vip, x))
	if table.dumps != 0 {
		t.Errorf("got %d dumps, want none", table.dumps)
	}
}

func mustFollow(t *testing.T, c *Cleaner, held proxy.Snapshot, full bool) {
	t.Helper()
	testenv.NoError(t, c.RemoveStale(t.Context(), held, full))
}

// The program that served an address before may answer once more after its flow was removed.
func TestReplyAfterARemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, answered := &fakeTable{flows: []flow{to(protoUDP, vip, vip)}}, false
		table.removed = func() {
			if !answered {
				answered = true
				table.flows = append(table.flows, from(protoUDP, vip))
			}
		}
		mustClean(t, newCleaner(Options{}, table), proxy.Snapshot{}, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))))
		if !answered {
			t.Error("the untranslated flow was not removed, so the test shows nothing")
		}
		wantFlows(t, table)
	})
}

// Clean waits for replies only if there was untranslated traffic, and only as long as there
// are some.
func TestWaitsForReplies(t *testing.T) {
	t.Parallel()
	with := func(servers ...string) proxy.Snapshot {
		return proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), servers))
	}
	none := proxy.NewSnapshot(node())
	for name, tc := range map[string]struct {
		old, new proxy.Snapshot
		flows    []flow
		want     time.Duration
	}{
		"no flows":             {none, with(a), nil, 0},
		"translated":           {none, with(a), []flow{to(protoUDP, vip, x)}, 0},
		"not translated":       {none, with(a), []flow{to(protoUDP, vip, vip)}, underWay},
		"a reply":              {none, with(a), []flow{from(protoUDP, vip)}, underWay},
		"both":                 {none, with(a), []flow{to(protoUDP, vip, vip), from(protoUDP, vip)}, underWay},
		"endpoint removed":     {with(a, b), with(b), []flow{to(protoUDP, vip, a)}, 0},
		"reply of another VIP": {none, with(a), []flow{from(protoUDP, vip2)}, 0},
		"reply of SCTP":        {none, with(a), []flow{from(protoSCTP, vip)}, 0},
		"a translated reply":   {none, with(a), []flow{{proto: protoUDP, source: to(protoUDP, vip, a).dest, dest: to(protoUDP, x, a).dest, server: to(protoUDP, b, b).dest}}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			for _, deaf := range []bool{false, true} {
				start, took := time.Now(), time.Duration(-1)
				flows := append([]flow{to(protoUDP, "8.8.8.8:53", "8.8.8.8:53")}, tc.flows...)
				observe := func(a Account) { took = a.Duration }
				mustClean(t, newCleaner(Options{Observe: observe}, &fakeTable{flows: flows, deaf: deaf}), tc.old, tc.new)
				if got := time.Since(start); got != tc.want || took != tc.want {
					t.Errorf("%s: Clean waited %v, Account.Duration is %v, want %v", name, got, took, tc.want)
				}
			}
		})
	}
	t.Run("without end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start, table := time.Now(), &stubborn{fakeTable{flows: []flow{from(protoUDP, vip)}}}
			mustClean(t, newCleaner(Options{}, table), none, with(a))
			if got, want := time.Since(start), (maxPasses-1)*underWay; got != want {
				t.Errorf("replies without end: Clean waited %v, want %v", got, want)
			}
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), underWay/2)
			defer cancel()
			start := time.Now()
			err := newCleaner(Options{}, &fakeTable{flows: []flow{to(protoUDP, vip, vip)}}).Clean(ctx, none, with(a))
			if got := time.Since(start); got != underWay/2 || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Clean took %v and returned %v, want that it ends with its context", got, err)
			}
		})
	})
}

// stubborn is a table whose flows reappear after their removal.
type stubborn struct{ fakeTable }

func (s *stubborn) remove(f flow) error {
	flows := slices.Clone(s.flows)
	err := s.fakeTable.remove(f)
	s.flows = flows
	return err
}

// An error names at most maxNamed flows, and counts the others.
func TestErrorsNameSomeFlows(t *testing.T) {
	t.Parallel()
	for n, more := range map[int]bool{maxNamed: false, maxNamed + 1: true} {
		table := &fakeTable{flows: slices.Repeat([]flow{to(protoUDP, vip, a)}, n), err: errors.New("broken")}
		err := newCleaner(Options{}, table).Clean(t.Context(), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))), proxy.NewSnapshot(node()))
		if err == nil || strings.Count(err.Error(), "remove flow") != maxNamed ||
			strings.Contains(err.Error(), "and 1 more flows") != more || strings.Contains(err.Error(), "more flows") != more {
			t.Errorf("%d flows: got error %v, want one that names %d, and counts one more: %v", n, err, maxNamed, more)
		}
	}
}
