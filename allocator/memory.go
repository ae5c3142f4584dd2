package allocator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"runtime"
	"slices"
	"sort"
	"sync"
)

const (
	// maxHistory is how many changes a watcher may lag behind, at least.
	maxHistory = 4096
	// maxBatch is how many commits are written to a journal at once, at most, and so how many fail
	// together.
	maxBatch = 1024
	// maxYields is how often gather yields to goroutines that may join a write.
	maxYields = 64
)

// Journal makes the changes of a [Memory] last.
type Journal interface {
	// Append writes changes, in their order, all or none. After an error the next call is
	// Rollback.
	Append(changes []Event) error
	// Rollback removes what a call of Append with an error may have written. After an error
	// Rollback is called again, before any other call. Calls of the two do not overlap.
	Rollback() error
}

// Memory is a store in the memory of one process. With a journal it is as
// durable as the journal: changes are visible once they are written, and commits that
// wait for the journal at the same time are written together.
//
// If the journal fails to write, the commits fail, and the journal is rolled back. As long as
// that fails too, it is unknown which of the last changes the journal has: every call then tries
// it again, and fails with the error.
type Memory struct {
	journal Journal

	mu       sync.Mutex
	claims   map[Key]Claim
	version  Version
	history  []Event
	forgot   Version       // history has all changes after this one
	changed  chan struct{} // closed by the next change
	queue    []*commit
	flushing bool
	broken   error // why the journal is not rolled back
}

var _ Store = (*Memory)(nil)

// commit is a change that waits for the journal.
type commit struct {
	ops     []Op
	version Version
	err     error
	done    chan struct{}
}

// NewMemory makes a store that holds a state. The journal may be nil.
func NewMemory(from State, journal Journal) *Memory {
	m := &Memory{
		journal: journal, version: from.Version, forgot: from.Version,
		claims: make(map[Key]Claim, len(from.Claims)), changed: make(chan struct{}),
	}
	for _, c := range from.Claims {
		m.claims[c.Key] = c
	}
	return m
}

// Load implements [Store].
func (m *Memory) Load(ctx context.Context) (State, error) {
	return m.read(ctx, func() []Claim { return slices.AppendSeq(make([]Claim, 0, len(m.claims)), maps.Values(m.claims)) })
}

// Get implements [Store].
func (m *Memory) Get(ctx context.Context, keys ...Key) (State, error) {
	return m.read(ctx, func() (all []Claim) {
		for _, k := range keys {
			if c, ok := m.claims[k]; ok {
				all = append(all, c)
			}
		}
		return all
	})
}

// read returns the claims that choose chooses while it holds m.mu.
func (m *Memory) read(ctx context.Context, choose func() []Claim) (State, error) {
	if err := ctx.Err(); err != nil {
		return State{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mend(); err != nil {
		return State{}, err
	}
	return State{Claims: choose(), Version: m.version}, nil
}

// Commit implements [Store].
func (m *Memory) Commit(ctx context.Context, ops []Op) ([]Version, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := CheckOps(ops); err != nil {
		return nil, err
	}
	c := &commit{ops: ops}
	m.mu.Lock()
	if m.journal == nil {
		m.publish(m.accept([]*commit{c}))
		m.mu.Unlock()
		return c.result()
	}
	c.done = make(chan struct{})
	c.ops = slices.Clone(ops) // Commit may return before they are written.
	m.queue = append(m.queue, c)
	if !m.flushing {
		m.flushing = true
		go m.flush()
	}
	m.mu.Unlock()
	select {
	case <-c.done:
		return c.result()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *commit) result() ([]Version, error) {
	if c.err != nil {
		return nil, c.err
	}
	return slices.Repeat([]Version{c.version}, len(c.ops)), nil
}

// flush writes the queue until it is empty.
func (m *Memory) flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for last := 0; m.gather(last); {
		batch := m.queue[:min(len(m.queue), maxBatch)]
		m.queue, last = slices.Clone(m.queue[len(batch):]), len(batch)
		err := m.mend()
		if err == nil {
			err = m.write(batch)
		}
		for _, c := range batch {
			if err != nil {
				// A conflict may be with a change that was never written.
				c.err = err
			}
			close(c.done)
		}
	}
	m.flushing = false
}

// write writes commits to the journal and makes them visible. It unlocks m.mu while the
// journal writes.
func (m *Memory) write(batch []*commit) error {
	events, version := m.accept(batch)
	if len(events) == 0 {
		return nil
	}
	m.mu.Unlock()
	err := m.journal.Append(events)
	m.mu.Lock()
	if err == nil {
		m.publish(events, version)
		return nil
	}
	m.broken = err
	if unclear := m.mend(); unclear != nil {
		close(m.changed) // watchers return the error
		m.changed = make(chan struct{})
		return unclear
	}
	return err
}

// mend rolls the journal back if it is broken.
func (m *Memory) mend() error {
	if m.broken == nil {
		return nil
	}
	if err := m.journal.Rollback(); err != nil {
		return fmt.Errorf("it is unknown what the store has, because its journal failed: %w", errors.Join(m.broken, err))
	}
	m.broken = nil
	return nil
}

// gather yields until as many commits wait as were written together the last time, and
// reports whether any waits. Their callers are likely to commit again; without gather
// they would fall into two groups that wait for each other.
func (m *Memory) gather(last int) bool {
	for range maxYields {
		if len(m.queue) >= last {
			break
		}
		m.mu.Unlock()
		runtime.Gosched()
		m.mu.Lock()
	}
	return len(m.queue) > 0
}

// accept returns the changes of the commits whose preconditions hold after the previous
// ones, and the version of the last one. It makes nothing visible.
func (m *Memory) accept(batch []*commit) ([]Event, Version) {
	version := m.version
	events := make([]Event, 0, len(batch))
	ahead := make(map[Key]Claim, len(batch))
	for _, c := range batch {
		if c.err = m.compare(c.ops, ahead); c.err != nil {
			continue
		}
		version++
		c.version = version
		for _, op := range c.ops {
			e := Event{Claim: op.Claim, Deleted: op.Delete}
			e.Claim.Version = c.version
			events = append(events, e)
			if op.Delete {
				ahead[op.Claim.Key] = Claim{}
			} else {
				ahead[op.Claim.Key] = e.Claim
			}
		}
	}
	return events, version
}

// compare checks the preconditions of a commit.
func (m *Memory) compare(ops []Op, ahead map[Key]Claim) error {
	for _, op := range ops {
		current, ok := ahead[op.Claim.Key]
		if !ok {
			current = m.claims[op.Claim.Key]
		}
		if current.Version != op.Claim.Version {
			return &ConflictError{Key: op.Claim.Key, Current: current}
		}
	}
	return nil
}

// publish makes changes visible.
func (m *Memory) publish(events []Event, version Version) {
	if len(events) == 0 {
		return
	}
	m.version = version
	for _, e := range events {
		if e.Deleted {
			delete(m.claims, e.Claim.Key)
		} else {
			m.claims[e.Claim.Key] = e.Claim
		}
	}
	m.history = append(m.history, events...)
	if excess := len(m.history) - maxHistory; excess > maxHistory {
		m.forgot = m.history[excess-1].Claim.Version
		m.history = slices.Clone(m.history[excess:])
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// Watch implements [Store].
func (m *Memory) Watch(ctx context.Context, after Version) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			events, changed, err := m.since(after)
			if err != nil {
				yield(Event{}, err)
				return
			}
			for _, e := range events {
				if !yield(e, nil) {
					return
				}
				after = e.Claim.Version
			}
			select {
			case <-changed:
			case <-ctx.Done():
				yield(Event{}, context.Cause(ctx))
				return
			}
		}
	}
}

// since returns the changes after a version, and a channel that is closed when there are
// more.
func (m *Memory) since(after Version) ([]Event, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mend(); err != nil {
		return nil, nil, err
	}
	if after < m.forgot {
		return nil, nil, fmt.Errorf("changes after version %d: %w", after, ErrCompacted)
	}
	first := sort.Search(len(m.history), func(i int) bool { return m.history[i].Claim.Version > after })
	return slices.Clone(m.history[first:]), m.changed, nil
}
