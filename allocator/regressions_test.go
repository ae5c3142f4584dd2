package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// The tests of this file cover defects of earlier allocators.

// counting is a store that counts its calls, and fails or waits on demand.
type counting struct {
	allocator.Store
	mu      sync.Mutex
	calls   map[string]int
	err     error
	blocked chan struct{}
}

func newCounting() *counting { return &counting{Store: newMemory(), calls: map[string]int{}} }

func (c *counting) count(call string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[call]++
	return c.err
}

func (c *counting) Load(ctx context.Context) (allocator.State, error) {
	if err := c.count("load"); err != nil {
		return allocator.State{}, err
	}
	return c.Store.Load(ctx)
}

func (c *counting) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	if err := c.count("get"); err != nil {
		return allocator.State{}, err
	}
	return c.Store.Get(ctx, keys...)
}

func (c *counting) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if err := c.count("commit"); err != nil {
		return nil, err
	}
	if c.blocked != nil {
		<-c.blocked
	}
	return c.Store.Commit(ctx, ops)
}

// TestCostDoesNotGrow checks that an allocation takes one write and no read, however many
// claims exist.
func TestCostDoesNotGrow(t *testing.T) {
	for _, existing := range []int{0, 20_000} {
		store := newCounting()
		p := newPool(t, store, "10.96.0.0/16", "30000-32767")
		if existing > 0 {
			mustReserve(t, p, "filler", allocator.Request{Kind: allocator.IPv4, Count: existing})
		}
		mustReserve(t, p, "first", next(allocator.IPv4))
		store.calls = map[string]int{}
		allocs := testing.AllocsPerRun(100, func() { mustReserve(t, p, "web", next(allocator.IPv4)) })
		testenv.Same(t, map[string]int{"commit": 101}, store.calls, "calls for 101 allocations among %d", existing)
		if allocs > 30 {
			t.Errorf("memory allocations of an allocation among %d: got %v, want at most 30", existing, allocs)
		}
		store.calls = map[string]int{}
		mustReserve(t, p, "ports", allocator.Request{Kind: allocator.Port, Count: 250})
		testenv.Same(t, map[string]int{"commit": 1}, store.calls, "calls for 250 node ports")
	}
}

// TestNoLockOverIO checks that allocations do not wait for each other's writes.
func TestNoLockOverIO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCounting()
		p := newPool(t, store, "10.96.0.0/24")
		testenv.NoError(t, p.Sync(t.Context()))
		store.blocked = make(chan struct{})
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				if _, err := p.Reserve(t.Context(), allocator.Owner(fmt.Sprint(i)), next(allocator.IPv4)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		testenv.Same(t, 32, store.calls["commit"], "writes that have begun while none has ended")
		if got := len(p.Claims()); got != 0 {
			t.Errorf("addresses in use before the store has them: got %d, want none", got)
		}
		close(store.blocked)
		wg.Wait()
		if got := len(p.Claims()); got != 32 {
			t.Errorf("got %d addresses, want 32", got)
		}
	})
}

// TestUnknownOutcomeIsNotGuessed checks that a key whose write has an unknown outcome is
// not allocated before the pool has read the store.
func TestUnknownOutcomeIsNotGuessed(t *testing.T) {
	store := newCounting()
	p := newPool(t, store, "10.96.0.0/30")
	testenv.NoError(t, p.Sync(t.Context()))
	store.err = errors.New("the connection was lost")
	_, err := p.Reserve(t.Context(), "web", exactly(t, "10.96.0.1"))
	if !errors.Is(err, allocator.ErrUnknown) || !errors.Is(err, store.err) {
		t.Fatalf("got error %v, want %v and the reason", err, allocator.ErrUnknown)
	}
	testenv.Same(t, 1, p.Ranges()[0].Stats.Used, "addresses in use while the outcome is unknown")
	store.err = nil
	mustReserve(t, p, "web", allocator.Request{Kind: allocator.IPv4, Count: 2})
}

// TestLateReleaseFreesNothing checks that a release works for the owner only, and only
// for the allocation whose claim it names.
func TestLateReleaseFreesNothing(t *testing.T) {
	p := newPool(t, newMemory(), "10.96.0.0/24")
	old := mustReserve(t, p, "web", exactly(t, "10.96.0.9"))
	testenv.NoError(t, p.Release(t.Context(), old...))
	// The same owner's next allocation of the same address is another one.
	again := mustReserve(t, p, "web", exactly(t, "10.96.0.9"))
	if err := p.Release(t.Context(), old...); err != nil {
		t.Errorf("a late release: %v", err)
	}
	err := p.Release(t.Context(), allocator.Claim{Key: again[0].Key, Owner: "db"})
	held, ok := errors.AsType[*allocator.HeldError](err)
	if !ok || !errors.Is(err, allocator.ErrNotOwner) || held.Owner != "web" {
		t.Errorf("a release by another owner: got error %v, want %v that names web", err, allocator.ErrNotOwner)
	}
	if _, ok := p.Lookup(again[0].Key); !ok {
		t.Fatal("the address is free, want it allocated after releases of others")
	}
	// A claim without a token frees any allocation of the owner.
	if err := p.Release(t.Context(), allocator.Claim{Key: again[0].Key, Owner: "web"}); err != nil {
		t.Error(err)
	}
	if c, ok := p.Lookup(again[0].Key); ok {
		t.Errorf("claim after the release: got %+v, want none", c)
	}
}

// altered is a store whose states a test alters.
type altered struct {
	allocator.Store
	alter func(allocator.State) allocator.State
}

func (a *altered) Load(ctx context.Context) (allocator.State, error) {
	state, err := a.Store.Load(ctx)
	return a.alter(state), err
}

func (a *altered) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	state, err := a.Store.Get(ctx, keys...)
	return a.alter(state), err
}

func unaltered(s allocator.State) allocator.State { return s }

// versionless gives a store whose states have no version, and which never returns outdated data.
func versionless(s allocator.Store) allocator.Store {
	return &altered{Store: s, alter: func(s allocator.State) allocator.State { s.Version = 0; return s }}
}

// TestOutdatedReadsAreRepeated checks that a pool does not take a claim as deleted because
// a read from before its allocation lacks it.
func TestOutdatedReadsAreRepeated(t *testing.T) {
	for times, want := range map[int]error{3: nil, 1000: allocator.ErrStale} {
		store := &altered{newMemory(), unaltered}
		p := newPool(t, store, "10.96.0.0/24")
		mustReserve(t, p, "first", next(allocator.IPv4))
		claims := mustReserve(t, p, "web", next(allocator.IPv4))
		left := times
		store.alter = func(now allocator.State) allocator.State {
			if left--; left >= 0 {
				return allocator.State{Version: 1}
			}
			return now
		}
		err := p.Release(t.Context(), allocator.Claim{Key: claims[0].Key, Owner: "web"})
		if !errors.Is(err, want) {
			t.Errorf("%d outdated reads: got error %v, want %v", times, err, want)
		}
		if _, held := p.Lookup(claims[0].Key); held != (want != nil) {
			t.Errorf("%d outdated reads: held afterwards: got %t, want %t", times, held, want != nil)
		}
	}
}

// TestStoreIsAway has a pool in whose view all keys are taken, and a store that does not answer. The
// keys may be free: the pool must not say that they are taken.
func TestStoreIsAway(t *testing.T) {
	store := newCounting()
	p := newPool(t, store, "10.96.0.0/30")
	held := mustReserve(t, p, "web", allocator.Request{Kind: allocator.IPv4, Count: 2})
	store.err = errors.New("the store is away")
	for name, request := range map[string]allocator.Request{"any": next(allocator.IPv4), "by name": {Key: held[0].Key}} {
		_, err := p.Reserve(t.Context(), "api", request)
		if !errors.Is(err, store.err) || errors.Is(err, allocator.ErrFull) || errors.Is(err, allocator.ErrAllocated) {
			t.Errorf("%s: got error %v, want only that of the store", name, err)
		}
	}
	store.err = nil
	if _, err := p.Reserve(t.Context(), "api", next(allocator.IPv4)); !errors.Is(err, allocator.ErrFull) {
		t.Errorf("with the store: got error %v, want %v", err, allocator.ErrFull)
	}
}
