package allocator_test

import (
	"context"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// twice is a store to which each change comes twice; the second answer counts.
type twice struct{ *allocator.Memory }

func (s twice) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if _, err := s.Memory.Commit(ctx, ops); err != nil {
		return nil, err
	}
	return s.Memory.Commit(ctx, ops)
}

// TestChangesThatComeTwice wants a conflict with one's own change to be no conflict: what
// was reserved the first time would be nobody's until it ends.
func TestChangesThatComeTwice(t *testing.T) {
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

// past is a store that answers once from the past.
type past struct {
	*allocator.Memory
	before allocator.State
	asked  int
}

func (s *past) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	if s.asked++; s.asked == 1 {
		return s.before, nil
	}
	return s.Memory.Get(ctx, keys...)
}

// TestEmptyStateHasAVersion wants what a pool has read to bound how old the next answer may
// be, also where nothing was in it: the last change was a deletion.
func TestEmptyStateHasAVersion(t *testing.T) {
	store := &past{Memory: newMemory()}
	p, other := newPool(t, store, "10.96.0.0/24"), newPool(t, store.Memory, "10.96.0.0/24")
	claims := mustReserve(t, other, "web", exactly(t, "10.96.0.9"))
	var err error
	if store.before, err = store.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustRelease(t, other, claims...)
	if err := p.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context(), allocator.Claim{Key: claims[0].Key, Owner: "db"}); err != nil {
		t.Errorf("releasing what is free: %v", err)
	}
	if store.asked != 2 {
		t.Errorf("the store was asked %d times, want twice: its first answer was from the past", store.asked)
	}
}

// TestPreconditionOnAFreeKey wants a change of what is gone to be refused, whatever version
// it names.
func TestPreconditionOnAFreeKey(t *testing.T) {
	store := newMemory()
	claim := allocator.Claim{Key: allocator.PortKey(30000), Owner: "web", Token: 1}
	versions, err := store.Commit(t.Context(), []allocator.Op{{Claim: claim}})
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []allocator.Version{versions[0] - 1, versions[0] + 1} {
		stale := claim
		stale.Version = version
		if _, err := store.Commit(t.Context(), []allocator.Op{{Claim: stale}}); err == nil {
			t.Errorf("version %d where %d is held: the change was made", version, versions[0])
		}
	}
	gone := claim
	gone.Version = versions[0]
	if _, err := store.Commit(t.Context(), []allocator.Op{{Claim: gone, Delete: true}}); err != nil {
		t.Fatal(err)
	}
	for _, isDelete := range []bool{false, true} {
		if _, err := store.Commit(t.Context(), []allocator.Op{{Claim: gone, Delete: isDelete}}); err == nil {
			t.Errorf("deletion %t of what is gone: the change was made", isDelete)
		}
	}
}
