package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func mustBind(t testing.TB, p *allocator.Pool, claims ...allocator.Claim) []allocator.Claim {
	t.Helper()
	bound, err := p.Bind(t.Context(), claims...)
	if err != nil {
		t.Fatalf("Bind: %v", err)
	}
	return bound
}

func mustRelease(t testing.TB, p *allocator.Pool, claims ...allocator.Claim) {
	t.Helper()
	if err := p.Release(t.Context(), claims...); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// TestBindReadsTheStore binds a released claim again, by the pool that released it and by
// one that has not read the release. Both must refuse it, although the claim was bound.
func TestBindReadsTheStore(t *testing.T) {
	for _, isReallocated := range []bool{false, true} {
		store := newMemory()
		a, b := newPool(t, store, "10.96.0.0/24"), newPool(t, store, "10.96.0.0/24")
		reserved := mustReserve(t, a, "web", exactly(t, "10.96.0.9"))
		bound := mustBind(t, a, reserved...)
		testenv.NoError(t, b.Sync(t.Context()))
		mustRelease(t, a, bound...)
		if isReallocated {
			mustBind(t, a, mustReserve(t, a, "db", exactly(t, "10.96.0.9"))...)
		}
		for name, p := range map[string]*allocator.Pool{"the pool that released it": a, "another pool": b} {
			for _, old := range [][]allocator.Claim{reserved, bound} {
				if got, err := p.Bind(t.Context(), old...); !errors.Is(err, allocator.ErrExpired) {
					t.Errorf("reallocated %t, %s: got %v, error %v, want %v", isReallocated, name, got, err, allocator.ErrExpired)
				}
			}
		}
	}
}

// TestClaimsOfAReplacedStore checks that claims of a store that was replaced by an empty
// one have no effect there, although other claims have the same versions.
func TestClaimsOfAReplacedStore(t *testing.T) {
	before := newPool(t, newMemory(), "10.96.0.0/24")
	old := mustReserve(t, before, "web", exactly(t, "10.96.0.9"))
	p := newPool(t, newMemory(), "10.96.0.0/24")
	mine := mustReserve(t, p, "db", exactly(t, "10.96.0.9"))
	if mine[0].Version != old[0].Version {
		t.Fatalf("version: got %d, want %d as in the replaced store", mine[0].Version, old[0].Version)
	}
	if _, err := p.Bind(t.Context(), old...); !errors.Is(err, allocator.ErrExpired) {
		t.Errorf("Bind: got error %v, want %v", err, allocator.ErrExpired)
	}
	mustRelease(t, p, old...)
	if got, ok := p.Lookup(mine[0].Key); !ok || got != mine[0] {
		t.Errorf("Lookup: got %+v, %t, want %+v", got, ok, mine[0])
	}
	// A claim with a higher version than any of this store is an error, and does not
	// affect later calls.
	old[0].Version = 1000
	if _, err := p.Bind(t.Context(), old...); !errors.Is(err, allocator.ErrStale) {
		t.Errorf("Bind: got error %v, want %v", err, allocator.ErrStale)
	}
	mustBind(t, p, mine...)
	if err := p.Sync(t.Context()); err != nil {
		t.Errorf("Sync after a claim of the replaced store: %v", err)
	}
}

// TestRepeatedClaims checks that a claim that is named twice in a call counts once.
func TestRepeatedClaims(t *testing.T) {
	store := newCounting()
	p := newPool(t, store, "10.96.0.0/24")
	c := mustReserve(t, p, "web", next(allocator.IPv4), next(allocator.IPv4))
	store.calls = map[string]int{}
	bound := mustBind(t, p, c[0], c[1], c[0])
	if len(bound) != 3 || bound[0] != bound[2] || bound[0].Key == bound[1].Key || !bound[2].IsBound() {
		t.Errorf("got %+v, want the bound claims of %+v, the first one twice", bound, c)
	}
	mustRelease(t, p, c[0], bound[0], c[1], allocator.Claim{Key: c[1].Key, Owner: "web"})
	if got := p.Claims(); len(got) != 0 {
		t.Errorf("left over: %+v", got)
	}
	if diff := cmp.Diff(map[string]int{"commit": 2, "get": 1}, store.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestInvalidChangeIsNotRepeated checks that a pool does not retry a change that the
// store refuses as invalid.
func TestInvalidChangeIsNotRepeated(t *testing.T) {
	store := newCounting()
	p := newPool(t, store, "10.96.0.0/24")
	c := mustReserve(t, p, "web", next(allocator.IPv4))
	store.calls, store.err = map[string]int{}, fmt.Errorf("no: %w", allocator.ErrInvalid)
	if err := p.Release(t.Context(), c...); !errors.Is(err, allocator.ErrInvalid) {
		t.Errorf("got error %v, want %v", err, allocator.ErrInvalid)
	}
	if diff := cmp.Diff(map[string]int{"commit": 1}, store.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// readOnly is a store that cannot write, for a reason that does not end.
type readOnly struct {
	allocator.Store
	refuse func(allocator.Op) error
	writes int
}

func (r *readOnly) Commit(_ context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	r.writes++
	return nil, r.refuse(ops[0])
}

// TestFailingStoreIsSpared checks that a change does not write to a store again and again that
// fails each time, or that refuses to change the claim: its conflict is with the very version
// that the change expects.
func TestFailingStoreIsSpared(t *testing.T) {
	forbidden := errors.New("forbidden")
	store := newMemory()
	claims := mustReserve(t, newPool(t, store, "10.96.0.0/24"), "web", next(allocator.IPv4))
	for name, refuse := range map[string]func(allocator.Op) error{
		"forbidden": func(allocator.Op) error { return forbidden },
		"not ours": func(allocator.Op) error {
			return fmt.Errorf("%w: %w", forbidden, &allocator.ConflictError{Key: claims[0].Key, Current: claims[0]})
		},
	} {
		failing := &readOnly{Store: store, refuse: refuse}
		p := newPool(t, failing, "10.96.0.0/24")
		err := p.Release(t.Context(), claims...)
		if !errors.Is(err, forbidden) || failing.writes > 4 {
			t.Errorf("%s: Release: got error %v after %d writes, want %v after 4 at most", name, err, failing.writes, forbidden)
		}
		failing.writes = 0
		if _, err = p.Bind(t.Context(), claims...); !errors.Is(err, forbidden) || failing.writes > 4 {
			t.Errorf("%s: Bind: got error %v after %d writes, want %v after 4 at most", name, err, failing.writes, forbidden)
		}
	}
}
