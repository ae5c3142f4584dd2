package allocator_test

import (
	"context"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testenv"
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

// past is a store whose first Get returns an old state.
type past struct {
	*allocator.Memory
	before allocator.State
	gets   int
}

func (s *past) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	if s.gets++; s.gets == 1 {
		return s.before, nil
	}
	return s.Memory.Get(ctx, keys...)
}

// TestEmptyStateHasAVersion checks that a pool does not accept a state that is older than
// one it has read, even if that was empty because the last change was a deletion.
func TestEmptyStateHasAVersion(t *testing.T) {
	store := &past{Memory: newMemory()}
	p, other := newPool(t, store, "10.96.0.0/24"), newPool(t, store.Memory, "10.96.0.0/24")
	claims := mustReserve(t, other, "web", exactly(t, "10.96.0.9"))
	var err error
	if store.before, err = store.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustRelease(t, other, claims...)
	testenv.NoError(t, p.Sync(t.Context()))
	if err := p.Release(t.Context(), allocator.Claim{Key: claims[0].Key, Owner: "db"}); err != nil {
		t.Errorf("releasing a free key: %v", err)
	}
	if store.gets != 2 {
		t.Errorf("calls of Get: got %d, want two, as the first state is outdated", store.gets)
	}
}

// TestPreconditionOnAFreeKey checks that a change of a deleted claim is refused, whatever
// version it names.
func TestPreconditionOnAFreeKey(t *testing.T) {
	store := newMemory()
	claim := allocator.Claim{Key: allocator.PortKey(30000), Owner: "web", Token: 1}
	versions, err := store.Commit(t.Context(), []allocator.Op{{Claim: claim}})
	testenv.NoError(t, err)
	for _, version := range []allocator.Version{versions[0] - 1, versions[0] + 1} {
		stale := claim
		stale.Version = version
		if _, err := store.Commit(t.Context(), []allocator.Op{{Claim: stale}}); err == nil {
			t.Errorf("change of version %d when the store has %d: got no error, want one", version, versions[0])
		}
	}
	gone := claim
	gone.Version = versions[0]
	if _, err := store.Commit(t.Context(), []allocator.Op{{Claim: gone, Delete: true}}); err != nil {
		t.Fatal(err)
	}
	for _, isDelete := range []bool{false, true} {
		if _, err := store.Commit(t.Context(), []allocator.Op{{Claim: gone, Delete: isDelete}}); err == nil {
			t.Errorf("change of a deleted claim (deletion %t): got no error, want one", isDelete)
		}
	}
}
