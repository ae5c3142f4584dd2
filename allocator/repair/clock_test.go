package repair_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// passes runs a controller for count passes and returns the claims of the store after
// each. It calls between after each pass.
func passes(t *testing.T, c repair.Controller, count int, between func(pass int)) []string {
	t.Helper()
	var after []string
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.Observe = func(findings []repair.Finding, err error) {
		if err != nil {
			t.Errorf("pass %d: got %v, error %v, want no error", len(after), findings, err)
		}
		after = append(after, held(t, c.Store))
		between(len(after))
		if len(after) == count {
			cancel()
		}
	}
	c.Run(ctx) // It ends because of cancel.
	return after
}

// TestClaimsFromTheFuture checks that they are mended once the controller has seen them
// for the grace period, or for the duration of a reservation.
func TestClaimsFromTheFuture(t *testing.T) {
	for _, c := range []struct {
		name, claims, uses, after string
		interval                  time.Duration
		want                      int // the pass after which it is mended, from 1
	}{
		{name: "orphaned", claims: "10.96.0.1 a -9000h", interval: time.Minute, want: 2},
		{name: "short interval", claims: "10.96.0.1 a -9000h", interval: 20 * time.Second, want: 4},
		{name: "reserved", claims: "10.96.0.1 a -9000h reserved", interval: 40 * time.Second, want: 3},
		{name: "used by another", claims: "10.96.0.1 gone -9000h", uses: "10.96.0.1 a", after: "10.96.0.1 a", interval: time.Minute, want: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storeOf(t, c.claims)
				controller := repair.Controller{Store: store, Owners: uses(c.uses), Options: options(t), Interval: c.interval}
				before := held(t, store)
				after := passes(t, controller, c.want, func(int) {})
				for i, got := range after {
					want := before
					if i == c.want-1 {
						want = c.after
					}
					if got != want {
						t.Errorf("after pass %d the store holds %q, want %q", i+1, got, want)
					}
				}
			})
		})
	}
}

// TestClockIsBehind checks that a repair whose clock is an hour behind frees no claim that
// is young, although the claims are dated in its future.
func TestClockIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := allocator.NewMemory(allocator.State{}, nil)
		const ttl = 10 * time.Minute
		pool, err := allocator.NewPool(store, allocator.PoolOptions{Ranges: ranges(t), TTL: ttl})
		testenv.NoError(t, err)
		reserved, err := pool.Reserve(t.Context(), "slow", allocator.Request{Key: allocator.PortKey(30000)})
		testenv.NoError(t, err)
		leak := func() {
			if _, err := pool.Allocate(t.Context(), "new", allocator.Request{Key: allocator.PortKey(30001)}); err != nil {
				t.Error(err)
			}
		}
		leak()
		o := options(t)
		o.Now = func() time.Time { return time.Now().Add(-time.Hour) }
		controller := repair.Controller{Store: store, Owners: uses(""), Options: o, Interval: 40 * time.Second}
		got := passes(t, controller, 4, func(pass int) {
			if pass == 1 {
				// Allocate the same key again.
				if err := pool.Release(t.Context(), allocator.Claim{Key: allocator.PortKey(30001), Owner: "new"}); err != nil {
					t.Error(err)
				}
				leak()
			}
		})
		want := []string{
			"30000 slow reserved\n30001 new", "30000 slow reserved\n30001 new", "30000 slow reserved\n30001 new",
			"30000 slow reserved", // the second allocation is older than the grace period
		}
		testenv.Same(t, want, got, "claims after each pass")
		if _, err := pool.Bind(t.Context(), reserved...); err != nil {
			t.Errorf("binding within the TTL: %v", err)
		}
	})
}
