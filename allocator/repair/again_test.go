package repair_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestGraceIgnoresReservations checks that reservations end by their own times, however
// long the grace period is.
func TestGraceIgnoresReservations(t *testing.T) {
	for _, c := range []struct {
		age, ttl time.Duration
		isKept   bool
	}{
		{age: 5 * time.Minute, ttl: 10 * time.Minute, isKept: true},
		{age: 10 * time.Minute, ttl: 10 * time.Minute},
		{age: 20 * time.Second, ttl: 10 * time.Second},
	} {
		since := start().Add(-c.age)
		claim := allocator.Claim{
			Key: allocator.PortKey(30000), Owner: "me", Token: 7, Version: 1, Since: since, Expires: since.Add(c.ttl),
		}
		store := allocator.NewMemory(allocator.State{Claims: []allocator.Claim{claim}, Version: 1}, nil)
		if _, err := repair.Reconcile(t.Context(), store, uses(""), options(t)); err != nil {
			t.Fatal(err)
		}
		if isKept := held(t, store) != ""; isKept != c.isKept {
			t.Errorf("%+v: kept: got %t, want %t", c, isKept, c.isKept)
		}
	}
}

// TestMendedAllocationIsTheSame checks that an owner that binds its reservation after a
// pass did has the same allocation, and can release it by its claim.
func TestMendedAllocationIsTheSame(t *testing.T) {
	store := allocator.NewMemory(allocator.State{}, nil)
	pool, err := allocator.NewPool(store, allocator.PoolOptions{Ranges: ranges(t)})
	testenv.NoError(t, err)
	claims, err := pool.Reserve(t.Context(), "web", allocator.Request{Key: allocator.PortKey(30000)})
	testenv.NoError(t, err)
	findings, err := repair.Reconcile(t.Context(), store, uses("30000 web"), repair.Options{Ranges: ranges(t)})
	if err != nil || lines(findings) != "missing: 30000 of web (mended)" {
		t.Fatalf("findings: got %v, error %v, want one missing claim", findings, err)
	}
	if _, err := pool.Bind(t.Context(), claims...); err != nil {
		t.Errorf("binding a mended claim: %v", err)
	}
	if err := pool.Release(t.Context(), claims...); err != nil || held(t, store) != "" {
		t.Errorf("releasing a mended claim: error %v, the store holds %q, want nothing", err, held(t, store))
	}
}

// TestPauses checks that the pause after a failure grows, is short again after a pass
// without error, and is not longer than the interval.
func TestPauses(t *testing.T) {
	for _, c := range []struct {
		interval time.Duration
		want     []time.Duration // after passes that fail, fail, succeed, fail
	}{
		{interval: time.Minute, want: []time.Duration{time.Second, 2 * time.Second, time.Minute, time.Second}},
		{want: []time.Duration{time.Second, 2 * time.Second, repair.DefaultInterval, time.Second}},
		{interval: time.Second / 2, want: []time.Duration{time.Second / 2, time.Second / 2, time.Second / 2, time.Second / 2}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var at []time.Time
			var observed []bool
			broken := errors.New("no reply")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			controller := repair.Controller{
				Store: allocator.NewMemory(allocator.State{}, nil), Options: options(t), Interval: c.interval,
				Owners: func(context.Context) ([]repair.Use, error) {
					if at = append(at, time.Now()); len(at) == 5 {
						cancel()
					}
					if len(at) == 3 {
						return nil, nil
					}
					return nil, broken
				},
				Observe: func(_ []repair.Finding, err error) { observed = append(observed, errors.Is(err, broken)) },
			}
			controller.Run(ctx)
			testenv.Same(t, []bool{true, true, false, true, true}, observed, "passes observed as failed")
			var got []time.Duration
			for i, next := range at[1:] {
				got = append(got, next.Sub(at[i]))
			}
			testenv.Same(t, c.want, got, "pauses with an interval of %v", c.interval)
		})
	}
}
