package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// recorder is a backend that records from which snapshot it was called, and reports drift.
type recorder struct {
	proxy.NoAbilities
	mu      sync.Mutex // of what a test sets and the Runner reads
	from    []uint64
	to      proxy.Snapshot
	err     error
	drifted bool
}

func (r *recorder) Apply(_ context.Context, old, new proxy.Snapshot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from, r.to = append(r.from, uint64(old.Len())), new
	return r.err
}

func (r *recorder) Cleanup(context.Context) error { return r.err }

func (r *recorder) Abilities() proxy.Abilities { return proxy.Abilities{Drifted: r.isDrifted} }

func (r *recorder) isDrifted(context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.drifted
}

// given is a source of the snapshots that a test sends.
type given chan proxy.Snapshot

func (g given) Next(ctx context.Context, _ proxy.Snapshot) (proxy.Snapshot, error) {
	select {
	case s := <-g:
		return s, nil
	case <-ctx.Done():
		return proxy.Snapshot{}, ctx.Err()
	}
}

// interval is the RetryInterval and the ResyncInterval of an agent.
const interval = 10 * time.Second

// agent is a Runner with a Cleaner, in a bubble of synctest.
type agent struct {
	recorder
	table  fakeTable
	source given
	err    error // of the last sync
}

// foreign is not an endpoint of any Service.
const foreign = x

func runAgent(t *testing.T, test func(*agent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &agent{source: make(given)}
		r := proxy.Runner{
			Source: a.source, Backend: &a.recorder, FlowCleaner: newCleaner(Options{Foreign: isForeign}, &a.table),
			ResyncInterval: interval, RetryInterval: interval,
			Observers: []proxy.Observer{{Synced: func(s proxy.Sync) { a.err = s.Err }}},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		test(a)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// apply sends a snapshot and waits for its sync, or for the next retry or resync without one.
func (a *agent) apply(t *testing.T, want error, s ...proxy.Snapshot) {
	t.Helper()
	a.mu.Lock()
	a.err = nil
	a.mu.Unlock()
	for _, s := range s {
		a.source <- s
	}
	if len(s) == 0 {
		time.Sleep(interval)
	}
	synctest.Wait()
	if !errors.Is(a.err, want) || want == nil && a.err != nil {
		t.Fatalf("sync: got error %v, want %v", a.err, want)
	}
}

func (a *agent) wantFrom(t *testing.T, want ...uint64) {
	t.Helper()
	testenv.Same(t, want, a.from, "service ports of the old snapshots of Apply")
}

func TestFlowsFollowTheBackend(t *testing.T) {
	t.Parallel()
	n := node()
	one := proxy.NewSnapshot(n, port("dns", v1.ProtocolUDP, list(vip), list(a)))
	two := proxy.NewSnapshot(n, port("dns", v1.ProtocolUDP, list(vip), list(b)), port("ntp", v1.ProtocolUDP, list(vip2), list(b)))
	broken := errors.New("broken")
	runAgent(t, func(x *agent) {
		x.table.flows = []flow{to(protoUDP, vip, a)}
		x.apply(t, nil, one)
		x.table.err = broken
		x.apply(t, broken, two) // Apply succeeded, the cleaning failed.
		x.table.err = nil
		x.apply(t, nil)
		if len(x.table.flows) != 0 {
			t.Errorf("got flows %v left, want none", x.table.flows)
		}
		x.recorder.err = broken
		x.table.flows = []flow{to(protoUDP, vip, b)}
		x.apply(t, broken, proxy.NewSnapshot(n))
		if len(x.table.flows) != 1 {
			t.Error("flows were cleaned after a failed Apply")
		}
		x.recorder.err = proxy.PortErrors{port("dns", v1.ProtocolUDP, nil, nil).Name: broken}
		x.apply(t, broken)
		if len(x.table.flows) != 1 {
			t.Error("flows of a refused service port were cleaned")
		}
		x.wantFrom(t, 0, 1, 2, 2, 2)
	})
}

// If only the first cleaning fails, the next Apply begins from what the backend achieved, unless
// there is drift.
func TestFirstFollowFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	runAgent(t, func(x *agent) {
		x.table = fakeTable{flows: []flow{to(protoUDP, vip, a), to(protoUDP, "10.96.0.77:53", foreign)}, err: broken}
		x.apply(t, broken, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(b))))
		x.apply(t, broken)
		x.drifted = true
		x.apply(t, broken)
		x.drifted, x.table.err = false, nil
		x.apply(t, nil)
		if len(x.table.flows) != 0 {
			t.Errorf("got flows %v left, want none", x.table.flows)
		}
		x.table.flows = []flow{to(protoUDP, vip, vip), to(protoUDP, "10.96.0.77:53", foreign)}
		x.drifted = true
		x.apply(t, nil) // a resync
		if len(x.table.flows) != 1 || x.table.flows[0].translated() == false {
			t.Errorf("got flows %v left, want the one that another program made since", x.table.flows)
		}
		x.wantFrom(t, 0, 1, 0, 1, 0)
	})
}

// After a partial Apply, flows of the service ports that were not changed stay.
func TestFlowsFollowAPart(t *testing.T) {
	t.Parallel()
	n := node()
	dns, ntp := port("dns", v1.ProtocolUDP, list(vip), list(a)), port("ntp", v1.ProtocolUDP, list(vip2), list(a))
	runAgent(t, func(x *agent) {
		x.table.flows = []flow{to(protoUDP, vip, a), to(protoUDP, vip2, a)}
		x.apply(t, nil, proxy.NewSnapshot(n, dns, ntp))
		broken := errors.New("broken")
		x.recorder.err = proxy.PortErrors{dns.Name: broken}
		x.apply(t, broken, proxy.NewSnapshot(n))
		x.apply(t, broken)
		x.wantFrom(t, 0, 2, 1)
		if len(x.table.flows) != 1 || x.table.flows[0].dest != to(protoUDP, vip, a).dest {
			t.Errorf("got flows %v left, want those of the refused service port", x.table.flows)
		}
	})
}

// After the dataplane was lost, a full apply follows, and all frontends are cleaned; what was
// achieved before the cleaning failed does not count.
func TestFlowsAfterLoss(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, behind := range []error{nil, broken} {
		runAgent(t, func(x *agent) {
			x.table = fakeTable{flows: []flow{to(protoUDP, vip, foreign)}, err: behind}
			one := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
			for i, lost := range []error{nil, proxy.ErrDataplaneLost, nil} {
				x.recorder.err = lost
				x.table.flows = []flow{to(protoUDP, vip, foreign)}
				want := behind
				if lost != nil {
					want = lost
				}
				if i == 2 {
					x.apply(t, want)
				} else {
					x.apply(t, want, one)
				}
				if isLeft := len(x.table.flows) > 0; isLeft != (want != nil) {
					t.Errorf("step %d: got stale flows left %v, want %v", i, isLeft, want != nil)
				}
			}
			x.wantFrom(t, 0, 1, 0)
		})
	}
}

// RemoveStale cleans all frontends at first, and then those that change; all again if full is true.
func TestFollowCleansChanges(t *testing.T) {
	t.Parallel()
	table := &fakeTable{}
	c := newCleaner(Options{}, table)
	one := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
	two := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)), port("ntp", v1.ProtocolUDP, list(vip2), list(a)))
	for i, step := range []struct {
		held  proxy.Snapshot
		full  bool
		dumps int
	}{{one, true, 1}, {one, false, 0}, {two, false, 1}, {two, true, 1}, {two, false, 0}} {
		table.dumps = 0
		testenv.NoError(t, c.RemoveStale(t.Context(), step.held, step.full))
		if table.dumps != step.dumps {
			t.Errorf("step %d: got %d dumps, want %d", i, table.dumps, step.dumps)
		}
	}
}

// If cleaning all frontends fails, the next RemoveStale repeats it, also if full is false.
func TestFollowRepeatsAFullCleaning(t *testing.T) {
	t.Parallel()
	table := &fakeTable{}
	c := newCleaner(Options{}, table)
	one := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
	testenv.NoError(t, c.RemoveStale(t.Context(), one, true))
	table.flows, table.err = []flow{to(protoUDP, vip, x)}, errors.New("broken")
	if err := c.RemoveStale(t.Context(), one, true); !errors.Is(err, table.err) {
		t.Errorf("got error %v, want %v", err, table.err)
	}
	table.err = nil
	testenv.NoError(t, c.RemoveStale(t.Context(), one, false))
	if len(table.flows) != 0 {
		t.Errorf("got flows %v left, want none", table.flows)
	}
}

// RemoveStale sweeps a service range once, also if it is new when all frontends are cleaned.
func TestFollowSweepsARangeOnce(t *testing.T) {
	t.Parallel()
	foreign := 0
	table := &fakeTable{flows: []flow{to(protoUDP, "10.97.0.1:53", x)}}
	c := newCleaner(Options{Foreign: func(netip.Addr) bool { foreign++; return true }}, table)
	before, after := node(), node()
	after.ServiceCIDRs = append(after.ServiceCIDRs, netip.MustParsePrefix("10.97.0.0/16"))
	for i, n := range []*proxy.Node{before, after, after} {
		foreign = 0
		testenv.NoError(t, c.RemoveStale(t.Context(), proxy.NewSnapshot(n, port("dns", v1.ProtocolUDP, list(vip), list(a))), true))
		if want := [...]int{0, 1, 0}[i]; foreign != want {
			t.Errorf("step %d: Foreign was called %d times, want %d", i, foreign, want)
		}
	}
}

// The first RemoveStale cleans all frontends, also if full is false.
func TestFirstFollowIsNotFull(t *testing.T) {
	t.Parallel()
	table := &fakeTable{flows: []flow{to(protoUDP, vip, x)}}
	c := newCleaner(Options{}, table)
	testenv.NoError(t, c.RemoveStale(t.Context(), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))), false))
	if len(table.flows) != 0 {
		t.Errorf("got flows %v left, want none", table.flows)
	}
}

// RemoveStale returns no error for a flow that is offloaded, and removes it once it no longer is.
func TestOffloadedFlows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stale := to(protoUDP, vip, a)
		table := &fakeTable{flows: []flow{stale, to(protoUDP, vip, x)}, err: errOffloaded, failing: func(f flow) bool { return f.server == stale.server }}
		var accounts [][2]int
		c := newCleaner(Options{Observe: func(a Account) { accounts = append(accounts, [2]int{a.Removed, a.Offloaded}) }}, table)
		one := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(b)))
		follow := func(full bool) {
			t.Helper()
			testenv.NoError(t, c.RemoveStale(t.Context(), one, full))
		}
		wantDue := func(when string, want bool) {
			t.Helper()
			if got := c.RetryDue(); got != want {
				t.Errorf("%s: got RetryDue %v, want %v", when, got, want)
			}
		}
		follow(true)
		wantDue("at first", false)
		follow(false)
		time.Sleep(retryTime)
		wantDue("when it may no longer be offloaded", true)
		follow(false)
		wantDue("when it still is", false)
		table.err = nil
		time.Sleep(retryTime)
		wantDue("again", true)
		follow(false)
		time.Sleep(time.Hour)
		wantDue("when it is removed", false)
		if want := [][2]int{{1, 1}, {0, 1}, {1, 0}}; !slices.Equal(accounts, want) || len(table.flows) != 0 {
			t.Errorf("got flows removed and offloaded %v, want %v; got flows %v left, want none", accounts, want, table.flows)
		}
	})
}
