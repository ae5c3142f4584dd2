package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
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

// TestBindAsksTheStore wants that no claim is bound because it once was: neither by
// the pool that freed it, nor by one that has heard nothing of that.
func TestBindAsksTheStore(t *testing.T) {
	for _, isGivenAgain := range []bool{false, true} {
		store := newMemory()
		a, b := newPool(t, store, "10.96.0.0/24"), newPool(t, store, "10.96.0.0/24")
		reserved := mustReserve(t, a, "web", exactly(t, "10.96.0.9"))
		bound := mustBind(t, a, reserved...)
		if err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustRelease(t, a, bound...)
		if isGivenAgain {
			mustBind(t, a, mustReserve(t, a, "db", exactly(t, "10.96.0.9"))...)
		}
		for name, p := range map[string]*allocator.Pool{"the pool that freed it": a, "another": b} {
			for _, old := range [][]allocator.Claim{reserved, bound} {
				if got, err := p.Bind(t.Context(), old...); !errors.Is(err, allocator.ErrExpired) {
					t.Errorf("given again %t, %s: got %v, error %v, want %v", isGivenAgain, name, got, err, allocator.ErrExpired)
				}
			}
		}
	}
}

// TestClaimsOfAnEarlierLife wants that versions of a store that is gone count for
// nothing in the one that came after it, where others have the same ones.
func TestClaimsOfAnEarlierLife(t *testing.T) {
	before := newPool(t, newMemory(), "10.96.0.0/24")
	old := mustReserve(t, before, "web", exactly(t, "10.96.0.9"))
	p := newPool(t, newMemory(), "10.96.0.0/24")
	mine := mustReserve(t, p, "db", exactly(t, "10.96.0.9"))
	if mine[0].Version != old[0].Version {
		t.Fatalf("versions %d and %d; the test shows nothing", mine[0].Version, old[0].Version)
	}
	if _, err := p.Bind(t.Context(), old...); !errors.Is(err, allocator.ErrExpired) {
		t.Errorf("Bind: got error %v, want %v", err, allocator.ErrExpired)
	}
	mustRelease(t, p, old...)
	if got, ok := p.Lookup(mine[0].Key); !ok || got != mine[0] {
		t.Errorf("Lookup: got %+v, %t, want %+v", got, ok, mine[0])
	}
	// One from beyond the versions of this store cannot be judged, and spoils
	// nothing else.
	old[0].Version = 1000
	if _, err := p.Bind(t.Context(), old...); !errors.Is(err, allocator.ErrStale) {
		t.Errorf("Bind: got error %v, want %v", err, allocator.ErrStale)
	}
	mustBind(t, p, mine...)
	if err := p.Sync(t.Context()); err != nil {
		t.Errorf("Sync after a claim of an earlier life: %v", err)
	}
}

// TestClaimsThatComeTwice wants them to count once.
func TestClaimsThatComeTwice(t *testing.T) {
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

// TestSenselessChangeIsNotRepeated wants the store's answer that a change makes no
// sense to be the last word.
func TestSenselessChangeIsNotRepeated(t *testing.T) {
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

// slow is a store whose next read waits, once it has its answer. It may be one that does not
// say of which version that is.
type slow struct {
	allocator.Store
	answered, goOn chan struct{}
	isVersionless  bool
}

func (s *slow) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	state, err := s.Store.Get(ctx, keys...)
	if s.answered != nil {
		close(s.answered)
		<-s.goOn
	}
	if s.isVersionless {
		state.Version = 0
	}
	return state, err
}

// TestSlowAnswerUndoesNothing wants that an answer, by the time it comes, does not
// count against what the pool itself has done meanwhile.
func TestSlowAnswerUndoesNothing(t *testing.T) {
	for _, isVersionless := range []bool{false, true} {
		store := &slow{Store: newMemory(), isVersionless: isVersionless}
		p := newPool(t, store, "10.96.0.0/24")
		old := mustReserve(t, p, "web", exactly(t, "10.96.0.9"))
		mustRelease(t, p, old...)
		store.answered, store.goOn = make(chan struct{}), make(chan struct{})
		done := make(chan error)
		go func() { done <- p.Release(t.Context(), old...) }() // Reads that nobody has it.
		<-store.answered
		mine := mustReserve(t, p, "db", exactly(t, "10.96.0.9"))
		close(store.goOn)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got, ok := p.Lookup(mine[0].Key); !ok || got != mine[0] {
			t.Errorf("without versions %t: Lookup: got %+v, %t, want %+v", isVersionless, got, ok, mine[0])
		}
	}
}
