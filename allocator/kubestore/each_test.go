package kubestore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

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
