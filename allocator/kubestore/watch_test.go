package kubestore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/storetest"
)

// TestWatchGoesOn ends the watch between any two events, as API servers do, and
// loses none.
func TestWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newStore(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n, start := 0, time.Now()
		put := func() {
			a.put(t, "ipaddresses", foreign(storetest.Key(n).String(), "web"))
		}
		put()
		for e, err := range s.Watch(ctx, 0) {
			if err != nil {
				t.Fatalf("after %d events: %v", n, err)
			}
			if e.Claim.Key != storetest.Key(n) {
				t.Fatalf("event %d is about %v, want %v", n, e.Claim.Key, storetest.Key(n))
			}
			if n++; n == 10 {
				break
			}
			a.disconnect()
			if n%2 == 0 {
				go func() { time.Sleep(3 * time.Second); put() }() // while nothing listens
			} else {
				put()
			}
		}
		if got, want := time.Since(start), 4*3*time.Second; n != 10 || got != want {
			t.Errorf("got %d events in %v, want 10 in %v: a watch that has told something is followed by another one at once", n, got, want)
		}
	})
}

// TestWatchDoesNotSpin has an API server that ends every watch at once.
func TestWatchDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newStore(t)
		a.deaf = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		storetest.WantEnd(t, s.Watch(ctx, 1), context.DeadlineExceeded)
		if a.started < 2 || a.started > 61 {
			t.Errorf("%d watches were started in a minute, want 2 to 61", a.started)
		}
	})
}

func TestWatchTooOld(t *testing.T) {
	a, s := newStore(t)
	a.forget()
	storetest.WantEnd(t, s.Watch(t.Context(), 50), allocator.ErrCompacted)
}

// TestRangesFollow changes ServiceCIDR objects, also while nobody looks.
func TestRangesFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newStore(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		first, second := serviceCIDR("10.96.0.0/24"), serviceCIDR("10.97.0.0/24", "fd00::/48")
		second.Name = "more"
		a.put(t, "servicecidrs", &first)
		var got []string
		for r, err := range s.WatchRanges(ctx) {
			if err != nil {
				t.Fatalf("after %v: %v", got, err)
			}
			got = append(got, fmt.Sprintf("%v, unusable=%t", describeRanges(r.Configs), r.Unusable != nil))
			switch len(got) {
			case 1:
				a.put(t, "servicecidrs", &second)
			case 2:
				a.disconnect()
				a.removeSilently("servicecidrs", "test")
			}
			if len(got) == 3 {
				break
			}
		}
		want := []string{
			"[10.96.0.0/24 draining=false], unusable=false",
			"[10.97.0.0/24 draining=false 10.96.0.0/24 draining=false], unusable=true",
			"[10.97.0.0/24 draining=false], unusable=true",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// An API server that remembers nothing is not asked for the ranges without a pause.
func TestForgetfulServerIsAskedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newStore(t)
		a.refused = apierrors.NewResourceExpired("it is too old")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var told int
		for _, err := range s.WatchRanges(ctx) {
			if err == nil {
				told++
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
			}
		}
		if told < 2 || told > 61 {
			t.Errorf("it was asked %d times in a minute, want 2 to 61", told)
		}
	})
}
