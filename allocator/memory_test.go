package allocator_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/vipkit/vipkit/allocator"
)

// failing is a journal that waits to be told whether it works.
type failing struct{ verdicts chan error }

func (f failing) Append([]allocator.Event) error { return <-f.verdicts }

// TestBrokenJournal wants that a store that does not know what it holds says so, to
// those who read and those who watch, too, and that nobody is told of a conflict with
// what may not exist.
func TestBrokenJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := failing{verdicts: make(chan error)}
		m := allocator.NewMemory(allocator.State{}, journal)
		gone := errors.New("the disk is gone")
		var watching sync.WaitGroup
		watching.Go(func() {
			told := 0
			for e, err := range m.Watch(t.Context(), 0) {
				if told++; !errors.Is(err, gone) {
					t.Errorf("Watch: got event %+v, error %v, want %v", e, err, gone)
				}
			}
			if told != 1 {
				t.Errorf("Watch: told something %d times, want once", told)
			}
		})
		op := func(i int, owner allocator.Owner) allocator.Op {
			return allocator.Op{Claim: allocator.Claim{Key: allocator.PortKey(uint16(i)), Owner: owner, Token: 1}}
		}
		var rivals sync.WaitGroup
		rivals.Go(func() { _, _ = m.Commit(t.Context(), []allocator.Op{op(1, "first")}) }) // Written alone.
		synctest.Wait()
		for i := range 2 {
			rivals.Go(func() {
				_, err := m.Commit(t.Context(), []allocator.Op{op(2, allocator.Owner(fmt.Sprint(i)))})
				if !errors.Is(err, gone) || errors.Is(err, allocator.ErrConflict) {
					t.Errorf("Commit: got error %v, want %v", err, gone)
				}
			})
		}
		synctest.Wait()
		// The first write never ends well, and takes those who wait with it.
		journal.verdicts <- gone
		rivals.Wait()
		watching.Wait()
		_, loadErr := m.Load(t.Context())
		_, getErr := m.Get(t.Context(), allocator.PortKey(1))
		_, commitErr := m.Commit(t.Context(), []allocator.Op{op(3, "late")})
		for name, err := range map[string]error{"Load": loadErr, "Get": getErr, "Commit": commitErr} {
			if !errors.Is(err, gone) {
				t.Errorf("%s afterwards: got error %v, want %v", name, err, gone)
			}
		}
	})
}

// TestRivalsInAFailedWrite is about two commits of one write that fails.
func TestRivalsInAFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := failing{verdicts: make(chan error)}
		m := allocator.NewMemory(allocator.State{}, journal)
		gone := errors.New("the disk is gone")
		var all sync.WaitGroup
		commit := func(port uint16, want error) {
			all.Go(func() {
				claim := allocator.Claim{Key: allocator.PortKey(port), Owner: "me", Token: 1}
				_, err := m.Commit(t.Context(), []allocator.Op{{Claim: claim}})
				if !errors.Is(err, want) || errors.Is(err, allocator.ErrConflict) {
					t.Errorf("port %d: got error %v, want %v", port, err, want)
				}
			})
			synctest.Wait()
		}
		commit(1, nil)
		commit(2, gone)
		commit(2, gone) // In conflict with what is never written.
		journal.verdicts <- nil
		journal.verdicts <- gone
		all.Wait()
	})
}
