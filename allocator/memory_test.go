package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
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

// TestChangesBelongToTheStore has a caller that gives up, and uses for something else what
// it wanted to be written.
func TestChangesBelongToTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := failing{verdicts: make(chan error)}
		m := allocator.NewMemory(allocator.State{}, journal)
		var first sync.WaitGroup
		first.Go(func() {
			if _, err := m.Commit(t.Context(), []allocator.Op{{Claim: allocator.Claim{Key: allocator.PortKey(1), Owner: "first", Token: 1}}}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		ops := []allocator.Op{{Claim: allocator.Claim{Key: allocator.PortKey(2), Owner: "second", Token: 1}}}
		var second sync.WaitGroup
		second.Go(func() {
			if _, err := m.Commit(ctx, ops); !errors.Is(err, context.Canceled) {
				t.Errorf("got error %v, want %v", err, context.Canceled)
			}
		})
		synctest.Wait()
		cancel()
		second.Wait()
		ops[0].Claim.Owner = "nobody"
		journal.verdicts <- nil
		journal.verdicts <- nil
		first.Wait()
		synctest.Wait()
		state, err := m.Get(t.Context(), allocator.PortKey(2))
		if err != nil || len(state.Claims) != 1 || state.Claims[0].Owner != "second" {
			t.Errorf("got %v, error %v, want the claim of the second", state.Claims, err)
		}
	})
}

// TestWatchHasNoGaps wants a watch to tell either of every change after a version or that
// it cannot.
func TestWatchHasNoGaps(t *testing.T) {
	m := allocator.NewMemory(allocator.State{}, nil)
	const changes = 20_000
	claim := allocator.Claim{Key: allocator.PortKey(1), Owner: "me", Token: 1}
	for range changes {
		versions, err := m.Commit(t.Context(), []allocator.Op{{Claim: claim}})
		if err != nil {
			t.Fatal(err)
		}
		claim.Version = versions[0]
	}
	whole, refused := 0, 0
	for after := allocator.Version(0); after < changes; after += 50 {
		next, stop := iter.Pull2(m.Watch(t.Context(), after))
		e, err, _ := next()
		switch {
		case errors.Is(err, allocator.ErrCompacted):
			refused++
		case err != nil || e.Claim.Version != after+1:
			t.Errorf("after %d: the first change is %d, error %v", after, e.Claim.Version, err)
		default:
			whole++
		}
		stop()
	}
	if whole == 0 || refused == 0 {
		t.Errorf("%d watches were whole and %d refused; the test shows nothing", whole, refused)
	}
}

// TestRivalsOfOneWrite lets two changes of the same claim wait for one write: a release, and
// what relies on that there was none.
func TestRivalsOfOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := failing{verdicts: make(chan error)}
		held := allocator.Claim{Key: allocator.PortKey(2), Owner: "me", Token: 1, Version: 1}
		m := allocator.NewMemory(allocator.State{Claims: []allocator.Claim{held}, Version: 1}, journal)
		var all sync.WaitGroup
		commit := func(op allocator.Op, want error) {
			all.Go(func() {
				if _, err := m.Commit(t.Context(), []allocator.Op{op}); !errors.Is(err, want) {
					t.Errorf("%+v: got error %v, want %v", op, err, want)
				}
			})
			synctest.Wait()
		}
		next := held
		next.Owner, next.Version = "you", 0
		commit(allocator.Op{Claim: allocator.Claim{Key: allocator.PortKey(1), Owner: "me", Token: 1}}, nil) // Written alone.
		commit(allocator.Op{Claim: held, Delete: true}, nil)
		commit(allocator.Op{Claim: held}, allocator.ErrConflict)
		commit(allocator.Op{Claim: held, Delete: true}, allocator.ErrConflict)
		commit(allocator.Op{Claim: next}, nil)
		journal.verdicts <- nil
		journal.verdicts <- nil
		all.Wait()
	})
}
