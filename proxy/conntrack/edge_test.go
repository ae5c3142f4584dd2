package conntrack

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// Answers are waited for only where there was traffic that nobody translated, and no
// longer than they come.
func TestWaitsForAnswers(t *testing.T) {
	with := func(servers ...string) proxy.Snapshot {
		return proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), servers))
	}
	none := proxy.NewSnapshot(node())
	for name, tc := range map[string]struct {
		old, new proxy.Snapshot
		flows    []flow
		want     time.Duration
	}{
		"nobody was there":       {none, with(a), nil, 0},
		"translated":             {none, with(a), []flow{to(protoUDP, vip, x)}, 0},
		"not translated":         {none, with(a), []flow{to(protoUDP, vip, vip)}, underWay},
		"an answer":              {none, with(a), []flow{from(protoUDP, vip)}, underWay},
		"both":                   {none, with(a), []flow{to(protoUDP, vip, vip), from(protoUDP, vip)}, 2 * underWay},
		"an endpoint went":       {with(a, b), with(b), []flow{to(protoUDP, vip, a)}, 0},
		"one of another place":   {none, with(a), []flow{from(protoUDP, vip2)}, 0},
		"one of SCTP":            {none, with(a), []flow{from(protoSCTP, vip)}, 0},
		"a translated one, back": {none, with(a), []flow{{proto: protoUDP, source: to(protoUDP, vip, a).dest, dest: to(protoUDP, x, a).dest, server: to(protoUDP, b, b).dest}}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			for _, deaf := range []bool{false, true} {
				start, took := time.Now(), time.Duration(-1)
				flows := append([]flow{to(protoUDP, "8.8.8.8:53", "8.8.8.8:53")}, tc.flows...)
				observe := func(a Account) { took = a.Duration }
				mustClean(t, newCleaner(Options{Observe: observe}, &fakeTable{flows: flows, deaf: deaf}), tc.old, tc.new)
				if got := time.Since(start); got != tc.want || took != tc.want {
					t.Errorf("%s: Clean waited %v, and says %v, want %v", name, got, took, tc.want)
				}
			}
		})
	}
	t.Run("without end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start, table := time.Now(), &stubborn{fakeTable{flows: []flow{from(protoUDP, vip)}}}
			mustClean(t, newCleaner(Options{}, table), none, with(a))
			if got, want := time.Since(start), (maxPasses-1)*underWay; got != want {
				t.Errorf("Clean waited %v for answers that come without end, want %v", got, want)
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
				t.Errorf("Clean took %v, error %v, want its end with its context", got, err)
			}
		})
	})
}

// stubborn is a table whose flows come again.
type stubborn struct{ fakeTable }

func (s *stubborn) remove(f flow) error {
	flows := slices.Clone(s.flows)
	err := s.fakeTable.remove(f)
	s.flows = flows
	return err
}

// An error names so many flows, and counts the others.
func TestErrorsNameSomeFlows(t *testing.T) {
	for n, more := range map[int]bool{maxNamed: false, maxNamed + 1: true} {
		table := &fakeTable{flows: slices.Repeat([]flow{to(protoUDP, vip, a)}, n), err: errors.New("broken")}
		err := newCleaner(Options{}, table).Clean(t.Context(), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))), proxy.NewSnapshot(node()))
		if err == nil || strings.Count(err.Error(), "remove flow") != maxNamed ||
			strings.Contains(err.Error(), "and 1 flows more") != more || strings.Contains(err.Error(), "flows more") != more {
			t.Errorf("%d flows: error %v, want one that names %d, and that there is one more: %v", n, err, maxNamed, more)
		}
	}
}

// Endpoints of either pool keep their flows.
func TestEndpointsOfTheLocalPool(t *testing.T) {
	old, new := port("dns", v1.ProtocolUDP, list(vip), list(a)), port("dns", v1.ProtocolUDP, list(vip), list(b))
	new.Local = old.Cluster
	table := &fakeTable{flows: []flow{to(protoUDP, vip, a), to(protoUDP, vip, b), to(protoUDP, vip, x)}}
	mustClean(t, newCleaner(Options{}, table), proxy.Snapshot{}, proxy.NewSnapshot(node(), new))
	wantFlows(t, table, to(protoUDP, vip, a), to(protoUDP, vip, b))
}

// What could be achieved in part is where the next Apply begins.
func TestWrapGoesOnFromAPart(t *testing.T) {
	n := node()
	dns, ntp := port("dns", v1.ProtocolUDP, list(vip), list(a)), port("ntp", v1.ProtocolUDP, list(vip2), list(a))
	inner := &recorder{}
	table := &fakeTable{flows: []flow{to(protoUDP, vip, a), to(protoUDP, vip2, a)}}
	w := newCleaner(Options{}, table).Wrap(inner)
	if err := w.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(n, dns, ntp)); err != nil {
		t.Fatal(err)
	}
	inner.err = proxy.PortErrors{dns.Name: errors.New("broken")}
	none := proxy.NewSnapshot(n)
	for range 2 {
		if err := w.Apply(t.Context(), proxy.NewSnapshot(n, dns, ntp), none); err == nil {
			t.Fatal("Apply says nothing of what failed")
		}
	}
	if diff := cmp.Diff([]uint64{0, 2, 1}, inner.from); diff != "" {
		t.Errorf("service ports that the backend was told it has (-want +got):\n%s", diff)
	}
	if len(table.flows) != 1 || table.flows[0].dest != to(protoUDP, vip, a).dest {
		t.Errorf("flows %v left, want those of the port that is still there", table.flows)
	}
}

// A dataplane that was lost is written from nothing, and all flows are looked at again.
func TestWrapAfterLoss(t *testing.T) {
	inner := &recorder{}
	table := &fakeTable{}
	w := newCleaner(Options{}, table).Wrap(inner)
	one := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
	steps := []error{nil, proxy.ErrDataplaneLost, nil}
	for i, want := range steps {
		inner.err = want
		table.flows = []flow{to(protoUDP, vip, x)}
		old := one
		if i != 1 {
			old = proxy.Snapshot{}
		}
		if err := w.Apply(t.Context(), old, one); !errors.Is(err, want) {
			t.Fatalf("step %d: Apply says %v, want %v", i, err, want)
		}
		if isLeft := len(table.flows) > 0; isLeft != (want != nil) {
			t.Errorf("step %d: stale flows are left: %v, want %v", i, isLeft, want != nil)
		}
	}
	if diff := cmp.Diff([]uint64{0, 1, 0}, inner.from); diff != "" {
		t.Errorf("service ports that the backend was told it has (-want +got):\n%s", diff)
	}
}

// What was achieved before the flows failed is of no use once it is lost.
func TestWrapAfterLossWhileBehind(t *testing.T) {
	broken := errors.New("broken")
	inner := &watched{}
	table := &fakeTable{flows: []flow{to(protoUDP, vip, x)}, err: broken}
	w := newCleaner(Options{}, table).Wrap(inner)
	one := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
	for i, step := range []struct{ inner, want error }{{nil, broken}, {proxy.ErrDataplaneLost, proxy.ErrDataplaneLost}, {nil, broken}} {
		inner.err = step.inner
		if err := w.Apply(t.Context(), proxy.Snapshot{}, one); !errors.Is(err, step.want) {
			t.Fatalf("step %d: Apply says %v, want %v", i, err, step.want)
		}
	}
	if diff := cmp.Diff([]uint64{0, 1, 0}, inner.from); diff != "" {
		t.Errorf("service ports that the backend was told it has (-want +got):\n%s", diff)
	}
}

// Whoever begins in the middle, or again after Cleanup, takes no flow for granted.
func TestWrapBeginsInTheMiddle(t *testing.T) {
	one := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
	table := &fakeTable{}
	w := newCleaner(Options{}, table).Wrap(&recorder{})
	for _, when := range []string{"at first", "after Cleanup"} {
		table.flows = []flow{to(protoUDP, vip, x)}
		if err := w.Apply(t.Context(), one, one); err != nil {
			t.Fatal(err)
		}
		if len(table.flows) != 0 {
			t.Errorf("%s: flows %v left, want none", when, table.flows)
		}
		if err := w.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A wrapped backend drifts when it says so, and without a word of its own it may have.
func TestWrapTellsOfDrift(t *testing.T) {
	c := newCleaner(Options{}, &fakeTable{})
	for what, tc := range map[string]struct {
		backend proxy.Backend
		want    bool
	}{
		"it has":       {&watched{drifted: true}, true},
		"it has not":   {&watched{}, false},
		"nobody knows": {&recorder{}, true},
	} {
		d, ok := c.Wrap(tc.backend).(proxy.DriftChecker)
		if !ok || d.Drifted(t.Context()) != tc.want {
			t.Errorf("%s: drifted is %v, want %v", what, !tc.want, tc.want)
		}
	}
	if counter, ok := c.Wrap(&recorder{}).(proxy.OperationCounter); !ok || counter.Operations() != 0 {
		t.Error("a backend that does not count has operations")
	}
	if counter, ok := c.Wrap(counting{}).(proxy.OperationCounter); !ok || counter.Operations() != 7 {
		t.Error("the operations are not those of the backend, want 7")
	}
}

// counting is a backend that has counted.
type counting struct{ proxy.Backend }

func (counting) Operations() uint64 { return 7 }
