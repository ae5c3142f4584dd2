package kubestore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
)

// TestWatchIsRestarted ends the watch after each event, as API servers do, and checks that
// no event is lost.
func TestWatchIsRestarted(t *testing.T) {
	t.Parallel()
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
				t.Fatalf("event %d: got key %v, want %v", n, e.Claim.Key, storetest.Key(n))
			}
			if n++; n == 10 {
				break
			}
			a.disconnect()
			if n%2 == 0 {
				go func() { time.Sleep(3 * time.Second); put() }() // while no watch is open
			} else {
				put()
			}
		}
		if got, want := time.Since(start), 4*3*time.Second; n != 10 || got != want {
			t.Errorf("got %d events in %v, want 10 in %v: after a watch that sent an event the next one starts at once", n, got, want)
		}
	})
}

// TestWatchDoesNotSpin has an API server that ends every watch at once.
func TestWatchDoesNotSpin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, s := newStore(t)
		a.endsWatches = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		storetest.WantEnd(t, s.Watch(ctx, 1), context.DeadlineExceeded)
		if a.started < 2 || a.started > 61 {
			t.Errorf("watches in a minute: got %d, want 2 to 61", a.started)
		}
	})
}

func TestWatchTooOld(t *testing.T) {
	t.Parallel()
	a, s := newStore(t)
	a.forget()
	storetest.WantEnd(t, s.Watch(t.Context(), 50), allocator.ErrCompacted)
}

// TestPauseAfterCompaction has an API server that refuses every watch as too old. WatchRanges
// must pause before it lists the ranges again.
func TestPauseAfterCompaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, s := newStore(t)
		a.watchErr = apierrors.NewResourceExpired("it is too old")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var lists int
		for _, err := range s.WatchRanges(ctx) {
			if err == nil {
				lists++
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
			}
		}
		if lists < 2 || lists > 61 {
			t.Errorf("lists in a minute: got %d, want 2 to 61", lists)
		}
	})
}
