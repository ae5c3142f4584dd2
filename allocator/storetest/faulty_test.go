package storetest_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
)

// The errors that a faulty store injects.
var (
	// errLost is the error of a request that the store may have carried out or not.
	errLost = errors.New("the connection was lost")
	// errCrashed is the error of all requests after a crash.
	errCrashed = errors.New("the process has crashed")
)

// faults are the probabilities of faults, from 0 to 1.
type faults struct {
	// LostRequest drops a change; LostAnswer makes it and returns errLost.
	// LostRead fails a read.
	LostRequest, LostAnswer, LostRead float64
	// Duplicate makes a change twice; Late repeats one at some later time.
	Duplicate, Late float64
	// Conflict refuses a change without a reason.
	Conflict float64
	// Stale returns outdated data.
	Stale float64
}

// faulty is a store that fails. Whatever it returns, two owners must never bind one
// key.
type faulty struct {
	allocator.Store
	faults faults

	mu   sync.Mutex
	rnd  *rand.Rand
	sent [][]allocator.Op
	past []allocator.State
}

// newFaulty makes a store that fails at random.
func newFaulty(store allocator.Store, rnd *rand.Rand, faults faults) *faulty {
	return &faulty{Store: store, rnd: rnd, faults: faults}
}

func (f *faulty) happens(p float64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rnd.Float64() < p
}

// Commit implements [allocator.Store], with faults.
func (f *faulty) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	f.repeatOld(ctx)
	switch {
	case f.happens(f.faults.LostRequest):
		return nil, errLost
	case f.happens(f.faults.Conflict):
		return nil, &allocator.ConflictError{Key: ops[0].Claim.Key}
	}
	versions, err := f.Store.Commit(ctx, ops)
	f.remember(ctx, ops)
	if f.happens(f.faults.Duplicate) {
		if again, errAgain := f.Store.Commit(ctx, ops); f.happens(0.5) {
			versions, err = again, errAgain
		}
	}
	if f.happens(f.faults.LostAnswer) {
		return nil, errLost
	}
	return versions, err
}

// repeatOld repeats a change that was made before.
func (f *faulty) repeatOld(ctx context.Context) {
	if !f.happens(f.faults.Late) {
		return
	}
	f.mu.Lock()
	var ops []allocator.Op
	if len(f.sent) > 0 {
		ops = f.sent[f.rnd.IntN(len(f.sent))]
	}
	f.mu.Unlock()
	if len(ops) > 0 {
		// The preconditions of the change decide whether it takes effect.
		_, _ = f.Store.Commit(ctx, ops)
	}
}

func (f *faulty) remember(ctx context.Context, ops []allocator.Op) {
	state, err := f.Store.Load(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sent = append(f.sent, ops); len(f.sent) > 50 {
		f.sent = f.sent[1:]
	}
	if err != nil {
		return
	}
	if f.past = append(f.past, state); len(f.past) > 20 {
		f.past = f.past[1:]
	}
}

// Load implements [allocator.Store], with faults.
func (f *faulty) Load(ctx context.Context) (allocator.State, error) {
	if f.happens(f.faults.LostRead) {
		return allocator.State{}, errLost
	}
	if state, ok := f.stale(); ok {
		return state, nil
	}
	return f.Store.Load(ctx)
}

// Get implements [allocator.Store], with faults.
func (f *faulty) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	if f.happens(f.faults.LostRead) {
		return allocator.State{}, errLost
	}
	state, ok := f.stale()
	if !ok {
		return f.Store.Get(ctx, keys...)
	}
	isOther := func(c allocator.Claim) bool { return !slices.Contains(keys, c.Key) }
	state.Claims = slices.DeleteFunc(slices.Clone(state.Claims), isOther)
	return state, nil
}

func (f *faulty) stale() (allocator.State, bool) {
	if !f.happens(f.faults.Stale) {
		return allocator.State{}, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.past) == 0 {
		return allocator.State{}, false
	}
	return f.past[f.rnd.IntN(len(f.past))], true
}

// mortal is the store of a process that crashes at one of its calls.
type mortal struct {
	allocator.Store
	// Left is how many calls succeed before the process crashes. Calls counts all calls.
	Left, Calls int
	// After says that the call at which the process crashes still reaches the store.
	After bool
}

// Commit implements [allocator.Store] until the process crashes.
func (m *mortal) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	switch crashes, isLast := m.crash(); {
	case isLast && m.After:
		_, _ = m.Store.Commit(ctx, ops) // the process has crashed and gets no result
		return nil, errCrashed
	case crashes:
		return nil, errCrashed
	}
	return m.Store.Commit(ctx, ops)
}

// Load implements [allocator.Store] until the process crashes.
func (m *mortal) Load(ctx context.Context) (allocator.State, error) {
	if crashes, _ := m.crash(); crashes {
		return allocator.State{}, errCrashed
	}
	return m.Store.Load(ctx)
}

// Get implements [allocator.Store] until the process crashes.
func (m *mortal) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	if crashes, _ := m.crash(); crashes {
		return allocator.State{}, errCrashed
	}
	return m.Store.Get(ctx, keys...)
}

func (m *mortal) crash() (crashes, isLast bool) {
	m.Calls++
	m.Left--
	return m.Left < 0, m.Left == -1
}

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) allocator.Store { return allocator.NewMemory(allocator.State{}, nil) })
}

// nowhere is a journal that discards all changes.
type nowhere struct{}

func (nowhere) Append([]allocator.Event) error { return nil }

func (nowhere) Rollback() error { return nil }

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
