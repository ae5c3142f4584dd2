package allocator_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/vipkit/vipkit/allocator"
)

// TestRunWatchesReleases checks that a pool learns from the watch alone which keys other
// pools release.
func TestRunWatchesReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCounting()
		p, other := newPool(t, store, "10.96.0.0/29"), newPool(t, store, "10.96.0.0/29")
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = p.Run(ctx) }) // It ends with its context.
		synctest.Wait()
		claims := mustReserve(t, other, "web", exactly(t, "10.96.0.3"))
		synctest.Wait()
		if got, ok := p.Lookup(claims[0].Key); !ok || got != claims[0] {
			t.Errorf("after the reservation: got %v, %t, want %v", got, ok, claims[0])
		}
		mustRelease(t, other, claims...)
		synctest.Wait()
		if got, ok := p.Lookup(claims[0].Key); ok || p.Stats(allocator.IPv4).Used != 0 {
			t.Errorf("after the release: got %v, %d keys in use, want none", got, p.Stats(allocator.IPv4).Used)
		}
		if loads := store.calls["load"]; loads != 2 {
			t.Errorf("calls of Load: got %d, want one for each pool", loads)
		}
		cancel()
		running.Wait()
	})
}
