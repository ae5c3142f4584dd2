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

// What a faulty store says when it hides the truth.
var (
	ErrLost    = errors.New("the connection was lost")
	ErrCrashed = errors.New("this process is dead")
)

// Faults are how likely each fault is, from 0 to 1.
type Faults struct {
	// LostRequest drops a change, LostAnswer makes it and says that the
	// connection was lost. LostRead fails a read.
	LostRequest, LostAnswer, LostRead float64
	// Duplicate makes a change twice, Late makes one again at some later time.
	Duplicate, Late float64
	// Conflict refuses a change for no reason.
	Conflict float64
	// Stale answers a read from the past.
	Stale float64
}

// Faulty is a store that fails. Safety must not depend on it: whatever comes
// back, two owners must never bind one key.
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

// Commit implements [allocator.Store], badly.
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

// repeatOld delivers a change once more that was made long ago.
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
		// Whether it goes through is the very question.
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

// Load implements [allocator.Store], badly.
func (f *Faulty) Load(ctx context.Context) (allocator.State, error) {
	if f.happens(f.faults.LostRead) {
		return allocator.State{}, ErrLost
	}
	if state, ok := f.stale(); ok {
		return state, nil
	}
	return f.Store.Load(ctx)
}

// Get implements [allocator.Store], badly.
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

// Mortal is a store as one process sees it that dies at one of its calls.
type Mortal struct {
	allocator.Store
	// Left is how many calls there will be before the process dies; After says
	// that the last of them still reaches the store. Calls counts them.
	Left, Calls int
	After       bool
}

// Commit implements [allocator.Store] until the process dies.
func (m *Mortal) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	switch dies, isLast := m.die(); {
	case isLast && m.After:
		_, _ = m.Store.Commit(ctx, ops) // Nobody is left to hear of it.
		return nil, ErrCrashed
	case dies:
		return nil, ErrCrashed
	}
	return m.Store.Commit(ctx, ops)
}

// Load implements [allocator.Store] until the process dies.
func (m *Mortal) Load(ctx context.Context) (allocator.State, error) {
	if dies, _ := m.die(); dies {
		return allocator.State{}, ErrCrashed
	}
	return m.Store.Load(ctx)
}

// Get implements [allocator.Store] until the process dies.
func (m *Mortal) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	if dies, _ := m.die(); dies {
		return allocator.State{}, ErrCrashed
	}
	return m.Store.Get(ctx, keys...)
}

// Watch implements [allocator.Store].
func (m *Mortal) Watch(ctx context.Context, after allocator.Version) iter.Seq2[allocator.Event, error] {
	return m.Store.Watch(ctx, after)
}

func (m *Mortal) die() (dies, isLast bool) {
	m.Calls++
	m.Left--
	return m.Left < 0, m.Left == -1
}
