package storetest_test

import (
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) allocator.Store { return allocator.NewMemory(allocator.State{}, nil) })
}

// nowhere is a journal that discards all changes.
type nowhere struct{}

func (nowhere) Append([]allocator.Event) error { return nil }

func TestMemoryWithJournal(t *testing.T) {
	storetest.Run(t, func(*testing.T) allocator.Store { return allocator.NewMemory(allocator.State{}, nowhere{}) })
}
