package storetest_test

import (
	"context"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) allocator.Store { return allocator.NewMemory(allocator.State{}, nil) })
}

// nowhere is a journal that discards all changes.
type nowhere struct{}

func (nowhere) Append([]allocator.Event) error { return nil }

func (nowhere) Rollback() error { return nil }

func TestMemoryWithJournal(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) allocator.Store { return allocator.NewMemory(allocator.State{}, nowhere{}) })
}

// versionless is a store whose states have no version, which the contract allows.
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

func TestSuiteWithoutVersions(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) allocator.Store {
		return versionless{allocator.NewMemory(allocator.State{}, nil)}
	})
}
