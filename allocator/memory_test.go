package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// failing is a journal that returns the errors that a test sends. It cannot be rolled back while
// torn has an error.
type failing struct {
	results chan error
	torn    *error
}

func (f failing) Append([]allocator.Event) error { return <-f.results }

func (f failing) Rollback() error {
	if f.torn == nil {
		return nil
	}
	return *f.torn
}

// TestBrokenJournal checks that a store whose journal has failed and cannot be rolled back returns the
// error to reads and watches too, that no commit fails by a conflict with a change that may
// not exist, and that the store works once the journal is rolled back.
func TestBrokenJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the disk was removed")
		torn := gone
		journal := failing{results: make(chan error, 1), torn: &torn}
		m := allocator.NewMemory(allocator.State{}, journal)
		var watching sync.WaitGroup
		watching.Go(func() {
			events := 0
			for e, err := range m.Watch(t.Context(), 0) {
				if events++; !errors.Is(err, gone) {
					t.Errorf("Watch: got event %+v, error %v, want %v", e, err, gone)
				}
			}
			if events != 1 {
				t.Errorf("Watch: got %d events, want one", events)
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
		// The first write fails, and with it the commits that wait.
		journal.results <- gone
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
		torn = nil
		state, err := m.Load(t.Context())
		if err != nil || len(state.Claims) != 0 {
			t.Errorf("Load after a rollback: got %v, error %v, want nothing", state.Claims, err)
		}
		journal.results <- nil
		if _, err := m.Commit(t.Context(), []allocator.Op{op(3, "late")}); err != nil {
			t.Errorf("Commit after a rollback: %v", err)
		}
	})
}

// batches is a journal that notes how many changes come at once. It fails at one of the writes.
type batches struct {
	begin chan struct{} // the first write waits for it
	sizes []int
	fails int
}

func (b *batches) Append(changes []allocator.Event) error {
	<-b.begin
	b.sizes = append(b.sizes, len(changes))
	if len(b.sizes) == b.fails {
		return errors.New("no space left")
	}
	return nil
}

func (*batches) Rollback() error { return nil }

// TestBatches checks that many commits which wait are written in batches of a bounded size, and that only
// those of a batch fail together.
func TestBatches(t *testing.T) {
	const limit, more = 1024, 452
	const waiting = 2*limit + more
	synctest.Test(t, func(t *testing.T) {
		journal := &batches{begin: make(chan struct{}), fails: 2}
		m := allocator.NewMemory(allocator.State{}, journal)
		var commits sync.WaitGroup
		var failed atomic.Int32
		for i := range 1 + waiting {
			commits.Go(func() {
				_, err := m.Commit(t.Context(), []allocator.Op{{Claim: allocator.Claim{Key: allocator.PortKey(uint16(i + 1)), Owner: "me", Token: 1}}})
				if err != nil {
					failed.Add(1)
				}
			})
			synctest.Wait() // The first commit is written alone, and the others wait.
		}
		close(journal.begin)
		commits.Wait()
		if want := []int{1, limit, limit, more}; !slices.Equal(journal.sizes, want) {
			t.Errorf("batches: got %v, want %v", journal.sizes, want)
		}
		testenv.Same(t, limit, failed.Load(), "failed commits")
		state, err := m.Load(t.Context())
		if err != nil || len(state.Claims) != 1+limit+more {
			t.Errorf("got %d claims, error %v, want %d", len(state.Claims), err, 1+limit+more)
		}
	})
}

// TestFailedWrite checks that a write that was rolled back fails its commit only: reads and watches
// go on, and later commits succeed.
func TestFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := failing{results: make(chan error, 1)}
		m := allocator.NewMemory(allocator.State{}, journal)
		op := allocator.Op{Claim: allocator.Claim{Key: allocator.PortKey(1), Owner: "me", Token: 1}}
		ctx, cancel := context.WithCancel(t.Context())
		var events []allocator.Event
		var watching sync.WaitGroup
		watching.Go(func() {
			for e, err := range m.Watch(ctx, 0) {
				if err == nil {
					events = append(events, e)
				}
			}
		})
		synctest.Wait()
		full := errors.New("no space left")
		journal.results <- full
		if _, err := m.Commit(t.Context(), []allocator.Op{op}); !errors.Is(err, full) {
			t.Errorf("Commit: got error %v, want %v", err, full)
		}
		state, err := m.Load(t.Context())
		if err != nil || len(state.Claims) != 0 {
			t.Errorf("Load: got %v, error %v, want nothing", state.Claims, err)
		}
		journal.results <- nil
		if _, err := m.Commit(t.Context(), []allocator.Op{op}); err != nil {
			t.Errorf("the same commit again: %v", err)
		}
		synctest.Wait()
		cancel()
		watching.Wait()
		if len(events) != 1 || events[0].Claim.Version != 1 {
			t.Errorf("events: got %+v, want one, of version 1", events)
		}
	})
}

// TestCommitCopiesItsChanges has a caller whose context ends while its commit waits, and
// who then changes the slice of operations.
func TestCommitCopiesItsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := failing{results: make(chan error)}
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
		journal.results <- nil
		journal.results <- nil
		first.Wait()
		synctest.Wait()
		state, err := m.Get(t.Context(), allocator.PortKey(2))
		if err != nil || len(state.Claims) != 1 || state.Claims[0].Owner != "second" {
			t.Errorf("got %v, error %v, want the claim of the second", state.Claims, err)
		}
	})
}

// TestWatchHasNoGaps checks that a watch either yields every change after a version or
// returns ErrCompacted.
func TestWatchHasNoGaps(t *testing.T) {
	m := allocator.NewMemory(allocator.State{}, nil)
	const changes = 20_000
	claim := allocator.Claim{Key: allocator.PortKey(1), Owner: "me", Token: 1}
	for range changes {
		versions, err := m.Commit(t.Context(), []allocator.Op{{Claim: claim}})
		testenv.NoError(t, err)
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
			t.Errorf("watch after %d: first change: got %d, error %v, want %d", after, e.Claim.Version, err, after+1)
		default:
			whole++
		}
		stop()
	}
	if whole == 0 || refused == 0 {
		t.Errorf("watches: got %d with all changes and %d compacted, want some of each", whole, refused)
	}
}

// TestRivalsOfOneWrite has several changes of one claim in one write: after the release,
// changes that expect the claim are conflicts, and one that expects a free key is not.
func TestRivalsOfOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := failing{results: make(chan error)}
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
		journal.results <- nil
		journal.results <- nil
		all.Wait()
	})
}
