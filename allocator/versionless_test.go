package allocator_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testenv"
)

// versionless is a store whose states have no version, and which never returns outdated data.
type versionless struct{ allocator.Store }

func (v versionless) Load(ctx context.Context) (allocator.State, error) {
	state, err := v.Store.Load(ctx)
	state.Version = 0
	return state, err
}

func (v versionless) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	state, err := v.Store.Get(ctx, keys...)
	state.Version = 0
	return state, err
}

// TestSyncWithoutVersions frees a key in another pool of a store whose states have no version.
// The pool must not keep the claim in its view.
func TestSyncWithoutVersions(t *testing.T) {
	store := versionless{newMemory()}
	other, p := newPool(t, store, "10.96.0.0/29"), newPool(t, store, "10.96.0.0/29")
	claims := mustReserve(t, other, "other", allocator.Request{Kind: allocator.IPv4, Count: 6})
	testenv.NoError(t, p.Sync(t.Context()))
	mustRelease(t, other, claims[0])
	if got := mustReserve(t, p, "web", next(allocator.IPv4)); got[0].Key != claims[0].Key {
		t.Errorf("got %v, want the released %v", got[0].Key, claims[0].Key)
	}
}

// TestLateSyncWithoutVersions makes a claim while a reply without it is in flight. The pool
// must keep the claim.
func TestLateSyncWithoutVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &lagging{Store: newMemory()}
		p := newPool(t, versionless{store}, "10.96.0.0/29")
		testenv.NoError(t, p.Sync(t.Context()))
		release, synced := store.hold("load"), make(chan error, 1)
		go func() { synced <- p.Sync(t.Context()) }()
		synctest.Wait()
		claims := mustReserve(t, p, "web", next(allocator.IPv4))
		release()
		testenv.NoError(t, <-synced)
		if got, ok := p.Lookup(claims[0].Key); !ok || got != claims[0] {
			t.Errorf("got %v, %t, want %v", got, ok, claims[0])
		}
	})
}
