package kubestore

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// TestEach checks that do is called once for every number.
func TestEach(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, atOnce, atOnce + 1, 1000} {
		counts := make([]atomic.Int32, n)
		each(n, func(i int) { counts[i].Add(1) })
		for i := range counts {
			if got := counts[i].Load(); got != 1 {
				t.Errorf("each(%d): calls for %d: got %d, want one", n, i, got)
			}
		}
	}
}

// TestWorst checks that any other error is preferred to a conflict, which would mean that
// nothing was written.
func TestWorst(t *testing.T) {
	t.Parallel()
	conflict := func(port uint16) error { return &allocator.ConflictError{Key: allocator.PortKey(port)} }
	lost := errors.New("no reply")
	for _, c := range []struct {
		errs []error
		want error
	}{
		{},
		{errs: []error{nil, nil}},
		{errs: []error{nil, lost, nil}, want: lost},
		{errs: []error{conflict(1), nil, lost}, want: lost},
		{errs: []error{nil, fmt.Errorf("foreign: %w", conflict(1)), conflict(2)}, want: fmt.Errorf("foreign: %w", conflict(1))},
	} {
		if got := worst(c.errs); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("of %v: got %v, want %v", c.errs, got, c.want)
		}
	}
}
