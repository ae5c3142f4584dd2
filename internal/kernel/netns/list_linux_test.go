package netns

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/vishvananda/netlink"
)

// A listing that a change interrupts is repeated; one that fails for another reason is not.
func TestListsAreConsistent(t *testing.T) {
	t.Parallel()
	interrupted := fmt.Errorf("list: %w", netlink.ErrDumpInterrupted)
	for _, c := range []struct {
		errs  []error
		want  error
		tries int
	}{
		{[]error{nil}, nil, 1},
		{[]error{interrupted, interrupted, nil}, nil, 3},
		{[]error{interrupted, io.ErrUnexpectedEOF}, io.ErrUnexpectedEOF, 2},
		{nil, netlink.ErrDumpInterrupted, listTries},
	} {
		tries := 0
		all, err := Consistent(func() ([]int, error) {
			tries++
			if tries > len(c.errs) {
				return []int{tries}, interrupted
			}
			return []int{tries}, c.errs[tries-1]
		})
		if !errors.Is(err, c.want) || tries != c.tries || len(all) != 1 || all[0] != tries {
			t.Errorf("%v: got %v and error %v after %d tries, want error %v after %d", c.errs, all, err, tries, c.want, c.tries)
		}
	}
}

func TestDestinationErrors(t *testing.T) {
	t.Parallel()
	for name, control := range map[string][]byte{"none": nil, "cut off": {1, 0, 0}} {
		if a, ok := destination(control); ok {
			t.Errorf("%s: destination: got %v, want none", name, a)
		}
	}
}
