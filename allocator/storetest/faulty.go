package storetest

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/vipkit/vipkit/allocator"
)

// The errors that a faulty store injects.
var (
	// ErrLost is the error of a request that the store may have carried out or not.
	ErrLost = errors.New("the connection was lost")
	// ErrCrashed is the error of all requests after a crash.
	ErrCrashed = errors.New("the process has crashed")
)

// Faults are the probabilities of faults, from 0 to 1.
type Faults struct {
	// LostRequest drops a change; LostAnswer makes it and returns [ErrLost].
	// LostRead fails a read.
	LostRequest, LostAnswer, LostRead float64
	// Duplicate makes a change twice; Late repeats one at some later time.
	Duplicate, Late float64
	// Conflict refuses a change without a reason.
	Conflict float64
	// Stale returns outdated data.
	Stale float64
}

// Faulty is a store that fails. Whatever it returns, two owners must never bind one
// key.
type Faulty struct {
	allocator.Store
	faults Faults

	mu   sync.Mutex
	rnd  *rand.Rand
	sent [][]allocator.Op
	past []allocator.State
}

// NewFaulty makes a store that fails at random.
func NewFaulty(store allocator.Store, rnd *rand.Rand, faults Faults) *Faulty {
	return &Faulty{Store: store, rnd: rnd, faults: faults}
}

func (f *Faulty) happens(p float64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rnd.Float64() < p
}

// Commit implements [allocator.Store], with faults.
func (f *Faulty) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	f.repeatOld(ctx)
	switch {
	case f.happens(f.faults.LostRequest):
		return nil, ErrLost
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
		return nil, ErrLost
	}
	return versions, err
}

// repeatOld repeats a change that was made before.
func (f *Faulty) repeatOld(ctx context.Context) {
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

func (f *Faulty) remember(ctx context.Context, ops []allocator.Op) {
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
func (f *Faulty) Load(ctx context.Context) (allocator.State, error) {
	if f.happens(f.faults.LostRead) {
		return allocator.State{}, ErrLost
	}
	if state, ok := f.stale(); ok {
		return state, nil
	}
	return f.Store.Load(ctx)
}

// Get implements [allocator.Store], with faults.
func (f *Faulty) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	if f.happens(f.faults.LostRead) {
		return allocator.State{}, ErrLost
	}
	state, ok := f.stale()
	if !ok {
		return f.Store.Get(ctx, keys...)
	}
	isOther := func(c allocator.Claim) bool { return !slices.Contains(keys, c.Key) }
	state.Claims = slices.DeleteFunc(slices.Clone(state.Claims), isOther)
	return state, nil
}

func (f *Faulty) stale() (allocator.State, bool) {
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

// Mortal is the store of a process that crashes at one of its calls.
type Mortal struct {
	allocator.Store
	// Left is how many calls succeed before the process crashes. Calls counts all calls.
	Left, Calls int
	// After says that the call at which the process crashes still reaches the store.
	After bool
}

// Commit implements [allocator.Store] until the process crashes.
func (m *Mortal) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	switch crashes, isLast := m.crash(); {
	case isLast && m.After:
		_, _ = m.Store.Commit(ctx, ops) // the process has crashed and gets no result
		return nil, ErrCrashed
	case crashes:
		return nil, ErrCrashed
	}
	return m.Store.Commit(ctx, ops)
}

// Load implements [allocator.Store] until the process crashes.
func (m *Mortal) Load(ctx context.Context) (allocator.State, error) {
	if crashes, _ := m.crash(); crashes {
		return allocator.State{}, ErrCrashed
	}
	return m.Store.Load(ctx)
}

// Get implements [allocator.Store] until the process crashes.
func (m *Mortal) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	if crashes, _ := m.crash(); crashes {
		return allocator.State{}, ErrCrashed
	}
	return m.Store.Get(ctx, keys...)
}

// Watch implements [allocator.Store].
func (m *Mortal) Watch(ctx context.Context, after allocator.Version) iter.Seq2[allocator.Event, error] {
	return m.Store.Watch(ctx, after)
}

func (m *Mortal) crash() (crashes, isLast bool) {
	m.Calls++
	m.Left--
	return m.Left < 0, m.Left == -1
}
