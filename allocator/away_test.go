package allocator_test

import (
	"context"
	"errors"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// absent is a store that cannot be read while err is set.
type absent struct {
	allocator.Store
	err error
}

func (a *absent) Load(ctx context.Context) (allocator.State, error) {
	if a.err != nil {
		return allocator.State{}, a.err
	}
	return a.Store.Load(ctx)
}

func (a *absent) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	if a.err != nil {
		return allocator.State{}, a.err
	}
	return a.Store.Get(ctx, keys...)
}

// TestStoreIsAway has a pool in whose view all keys are taken, and a store that does not answer. The
// keys may be free: the pool must not say that they are taken.
func TestStoreIsAway(t *testing.T) {
	store := &absent{Store: newMemory()}
	p := newPool(t, store, "10.96.0.0/30")
	held := mustReserve(t, p, "web", allocator.Request{Kind: allocator.IPv4, Count: 2})
	store.err = errors.New("the store is away")
	for name, request := range map[string]allocator.Request{"any": next(allocator.IPv4), "by name": {Key: held[0].Key}} {
		_, reserveErr := p.Reserve(t.Context(), "api", request)
		_, dryErr := p.DryRun(t.Context(), "api", request)
		for _, err := range []error{reserveErr, dryErr} {
			if !errors.Is(err, store.err) || errors.Is(err, allocator.ErrFull) || errors.Is(err, allocator.ErrAllocated) {
				t.Errorf("%s: got error %v, want only that of the store", name, err)
			}
		}
	}
	store.err = nil
	if _, err := p.Reserve(t.Context(), "api", next(allocator.IPv4)); !errors.Is(err, allocator.ErrFull) {
		t.Errorf("with the store: got error %v, want %v", err, allocator.ErrFull)
	}
}
