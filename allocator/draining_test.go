package allocator_test

import (
	"errors"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// TestDrainingRangeGivesNothing requests a particular key, any key, and several.
func TestDrainingRangeGivesNothing(t *testing.T) {
	r := newRange(t, "10.96.0.0/24", func(c *allocator.Config) { c.Draining = true })
	if err := r.Allocate("me", mustKey(t, "10.96.0.9")); !errors.Is(err, allocator.ErrNotInRange) {
		t.Errorf("Allocate: got error %v, want %v", err, allocator.ErrNotInRange)
	}
	if key, err := r.AllocateNext("me"); !errors.Is(err, allocator.ErrFull) {
		t.Errorf("AllocateNext: got %v, error %v, want %v", key, err, allocator.ErrFull)
	}
	if keys, err := r.AllocateN("me", 1); !errors.Is(err, allocator.ErrFull) {
		t.Errorf("AllocateN: got %v, error %v, want %v", keys, err, allocator.ErrFull)
	}
}
