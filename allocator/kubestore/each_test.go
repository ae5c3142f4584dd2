package kubestore

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// TestEach wants everything to be done once.
func TestEach(t *testing.T) {
	for _, n := range []int{0, 1, 2, atOnce, atOnce + 1, 1000} {
		counts := make([]atomic.Int32, n)
		each(n, func(i int) { counts[i].Add(1) })
		for i := range counts {
			if got := counts[i].Load(); got != 1 {
				t.Errorf("of %d things, number %d was done %d times", n, i, got)
			}
		}
	}
}

// TestGravest wants a conflict, which promises that nothing was written, to give way to any
// other error.
func TestGravest(t *testing.T) {
	conflict := func(port uint16) error { return &allocator.ConflictError{Key: allocator.PortKey(port)} }
	lost := errors.New("no answer")
	for _, c := range []struct {
		errs []error
		want error
	}{
		{},
		{errs: []error{nil, nil}},
		{errs: []error{nil, lost, nil}, want: lost},
		{errs: []error{conflict(1), nil, lost}, want: lost},
		{errs: []error{nil, fmt.Errorf("theirs: %w", conflict(1)), conflict(2)}, want: fmt.Errorf("theirs: %w", conflict(1))},
	} {
		if got := gravest(c.errs); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("of %v: got %v, want %v", c.errs, got, c.want)
		}
	}
}
