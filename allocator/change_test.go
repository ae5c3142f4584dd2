package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

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
	testenv.Same(t, map[string]int{"commit": 2, "get": 1}, store.calls, "calls")
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
	testenv.Same(t, map[string]int{"commit": 1}, store.calls, "calls")
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

// undoing is a store whose next change of several keys is made, but its answer is lost, so
// that the store undoes the change of the first key. The request that undoes it gets no answer
// either, and arrives when late is called.
type undoing struct {
	allocator.Store
	armed bool
	late  func() error
}

func (u *undoing) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if !u.armed || len(ops) < 2 {
		return u.Store.Commit(ctx, ops)
	}
	u.armed = false
	before, err := u.Store.Get(ctx, ops[0].Claim.Key)
	if err != nil {
		return nil, err
	}
	versions, err := u.Store.Commit(ctx, ops)
	if err != nil {
		return nil, err
	}
	undo := ops[0]
	undo.Delete = len(before.Claims) == 0
	if !undo.Delete {
		undo.Claim = before.Claims[0]
	}
	undo.Claim.Version = versions[0]
	u.late = func() error {
		_, err := u.Store.Commit(context.WithoutCancel(ctx), []allocator.Op{undo})
		return err
	}
	return nil, fmt.Errorf("%w: undoing a change got no answer", allocator.ErrUnknown)
}

// TestLateUndo has a store undo a part of a change after the pool has read that the whole
// change was made. The keys must stay with their owner.
func TestLateUndo(t *testing.T) {
	two := []allocator.Request{next(allocator.IPv4), next(allocator.Port)}
	for name, take := range map[string]func(*allocator.Pool, *undoing) ([]allocator.Claim, error){
		"Allocate": func(p *allocator.Pool, u *undoing) ([]allocator.Claim, error) {
			u.armed = true
			return p.Allocate(t.Context(), "web", two...)
		},
		"Bind": func(p *allocator.Pool, u *undoing) ([]allocator.Claim, error) {
			claims := mustReserve(t, p, "web", two...)
			u.armed = true
			return p.Bind(t.Context(), claims...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := &undoing{Store: newMemory()}
			p := newPool(t, store, "10.96.0.0/24", "30000-32767")
			claims, err := take(p, store)
			if err != nil || len(claims) != 2 || store.late == nil {
				t.Fatalf("got claims %v, error %v, want two", claims, err)
			}
			if err := store.late(); err == nil {
				t.Error("the change was undone")
			}
			for _, want := range claims {
				got, err := store.Get(t.Context(), want.Key)
				if err != nil || len(got.Claims) != 1 || got.Claims[0] != want || !got.Claims[0].IsBound() {
					t.Errorf("the store holds %v, error %v, want %v", got.Claims, err, want)
				}
				if known, ok := p.Lookup(want.Key); !ok || known != want {
					t.Errorf("the pool has %v, want %v", known, want)
				}
			}
		})
	}
}
