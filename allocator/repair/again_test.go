package repair_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/repair"
)

// TestReservationsEndWhenTheySay wants the grace to say nothing about reservations.
func TestReservationsEndWhenTheySay(t *testing.T) {
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
			t.Errorf("%+v: kept: %t", c, isKept)
		}
	}
}

// TestMendedAllocationIsTheSame wants an owner that was late to bind to find its own
// allocation, and to be able to release it by the claim that it has.
func TestMendedAllocationIsTheSame(t *testing.T) {
	store := allocator.NewMemory(allocator.State{}, nil)
	pool, err := allocator.NewPool(store, allocator.PoolOptions{Ranges: ranges(t)})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := pool.Reserve(t.Context(), "web", allocator.Request{Key: allocator.PortKey(30000)})
	if err != nil {
		t.Fatal(err)
	}
	findings, err := repair.Reconcile(t.Context(), store, uses("30000 web"), repair.Options{Ranges: ranges(t)})
	if err != nil || lines(findings) != "missing: 30000 of web (mended)" {
		t.Fatalf("found %v, error %v", findings, err)
	}
	if _, err := pool.Bind(t.Context(), claims...); err != nil {
		t.Errorf("binding what was mended: %v", err)
	}
	if err := pool.Release(t.Context(), claims...); err != nil || held(t, store) != "" {
		t.Errorf("releasing it: error %v, left %q", err, held(t, store))
	}
}

// TestPauses wants the first pause after each failure to be short again, and none to be
// longer than the interval.
func TestPauses(t *testing.T) {
	for _, c := range []struct {
		interval time.Duration
		want     []time.Duration // between passes that fail, fail, go well, fail
	}{
		{interval: time.Minute, want: []time.Duration{time.Second, 2 * time.Second, time.Minute, time.Second}},
		{interval: time.Second / 2, want: []time.Duration{time.Second / 2, time.Second / 2, time.Second / 2, time.Second / 2}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var at []time.Time
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
					return nil, errors.New("no answer")
				},
			}
			if err := controller.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Run ended with %v", err)
			}
			var got []time.Duration
			for i, next := range at[1:] {
				got = append(got, next.Sub(at[i]))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("pauses with an interval of %v (-want +got):\n%s", c.interval, diff)
			}
		})
	}
}
