package allocator_test

import (
	"context"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// twice is a store that executes each commit twice, and returns the second result.
type twice struct{ *allocator.Memory }

func (s twice) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if _, err := s.Memory.Commit(ctx, ops); err != nil {
		return nil, err
	}
	return s.Memory.Commit(ctx, ops)
}

// TestRepeatedChanges checks that a conflict with the pool's own change is no conflict:
// otherwise no caller would have the reservation, and the key would be lost until it ends.
func TestRepeatedChanges(t *testing.T) {
	store := twice{newMemory()}
	p := newPool(t, store, "10.96.0.0/24")
	claims := mustReserve(t, p, "web", next(allocator.IPv4))
	state, err := store.Load(t.Context())
	if err != nil || len(state.Claims) != 1 || state.Claims[0] != claims[0] {
		t.Fatalf("the store holds %v, error %v, want only %v", state.Claims, err, claims)
	}
	mustRelease(t, p, mustBind(t, p, claims...)...)
	if state, err := store.Load(t.Context()); err != nil || len(state.Claims) != 0 {
		t.Errorf("after the release the store holds %v, error %v, want nothing", state.Claims, err)
	}
}

// TestEmptyStateHasAVersion checks that a pool does not accept a state that is older than
// one it has read, even if that was empty because the last change was a deletion.
func TestEmptyStateHasAVersion(t *testing.T) {
	store := &altered{newMemory(), unaltered}
	p, other := newPool(t, store, "10.96.0.0/24"), newPool(t, store.Store, "10.96.0.0/24")
	claims := mustReserve(t, other, "web", exactly(t, "10.96.0.9"))
	before, err := store.Load(t.Context())
	testenv.NoError(t, err)
	mustRelease(t, other, claims...)
	testenv.NoError(t, p.Sync(t.Context()))
	gets := 0
	store.alter = func(now allocator.State) allocator.State {
		if gets++; gets == 1 {
			return before
		}
		return now
	}
	if err := p.Release(t.Context(), allocator.Claim{Key: claims[0].Key, Owner: "db"}); err != nil {
		t.Errorf("releasing a free key: %v", err)
	}
	if gets != 2 {
		t.Errorf("calls of Get: got %d, want two, as the first state is outdated", gets)
	}
}
