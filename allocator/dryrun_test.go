package allocator_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestDryRunFreesNothing makes a dry run in a range that is full of reservations, of which
// three have ended. It must give their keys, as Reserve could, and leave the store as it is:
// their owners can still bind them.
func TestDryRunFreesNothing(t *testing.T) {
	now := time.Now()
	store := newMemory()
	p, err := allocator.NewPool(store, allocator.PoolOptions{
		Ranges: configs(t, "10.96.0.0/29"), Now: func() time.Time { return now },
	})
	testenv.NoError(t, err)
	ended := mustReserve(t, p, "slow", allocator.Request{Kind: allocator.IPv4, Count: 3})
	now = now.Add(allocator.DefaultTTL)
	mustReserve(t, p, "web", allocator.Request{Kind: allocator.IPv4, Count: 3})
	before, err := store.Load(t.Context())
	testenv.NoError(t, err)
	used := p.Stats(allocator.IPv4)
	for count := 1; count <= 4; count++ {
		keys, err := p.DryRun(t.Context(), "new", allocator.Request{Kind: allocator.IPv4, Count: count})
		if isFull := err != nil; isFull != (count > len(ended)) || !isFull && len(keys) != count {
			t.Errorf("DryRun of %d: got %v, error %v", count, keys, err)
		}
	}
	after, err := store.Load(t.Context())
	testenv.NoError(t, err)
	if before.Version != after.Version {
		t.Errorf("version of the store: got %d, want %d as before", after.Version, before.Version)
	}
	if diff := cmp.Diff(used, p.Stats(allocator.IPv4)); diff != "" || p.Ranges()[0].Stats.Used != 6 {
		t.Errorf("keys in use after DryRun: got %+v, want as before:\n%s", p.Ranges()[0].Stats, diff)
	}
	if _, err := p.Bind(t.Context(), ended...); err != nil {
		t.Errorf("Bind after DryRun: %v", err)
	}
}
