package allocator

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
)

// DefaultTTL is how long a reservation lasts unless [PoolOptions] say otherwise.
const DefaultTTL = time.Minute

// attempts is how often an operation is tried when other pools are faster, before it
// fails with ErrConflict.
const attempts = 32

// maxFailures is how many writes of one change may fail for other reasons than other pools: the
// next one is likely to fail, too, such as without permission.
const maxFailures = 4

// rereadAfter is after how many attempts an allocation reads the whole store.
const rereadAfter = 4

// Bounds of the pause before a store that returned outdated data is read again.
const (
	stalePause    = time.Millisecond
	maxStalePause = 16 * time.Millisecond
)

// Pool allocates the keys of several ranges and keeps the claims in a store that any
// number of other pools, in other processes, may use too.
//
// The store decides. The pool's memory only proposes keys: each change has a
// precondition, so no two owners ever get one key, whatever the pool has missed. The
// pool holds no lock while it waits for the store.
//
// Any number of goroutines may use a Pool.
type Pool struct {
	store    Store
	ttl      time.Duration
	now      func() time.Time
	observer Observer

	mu    sync.Mutex
	index index
	reads shared
}

// PoolOptions says how a pool works. The zero value of each field is its
// default.
type PoolOptions struct {
	// Ranges are the first ranges of the pool; see [Pool.SetRanges].
	Ranges []Config
	// TTL is how long a reservation lasts that is not bound, [DefaultTTL] by
	// default. It must be longer than the time until Bind, and than the difference between
	// the clocks of the processes that share a store. If a clock is set forward by more,
	// reservations may end early, so that Bind fails; if it is set back, they end
	// when a running pool has seen them for their TTL.
	TTL time.Duration
	// Now is the clock, [time.Now] by default.
	Now func() time.Time
	// Observer is notified of what the pool does; nil for none.
	Observer Observer
}

// NewPool makes a pool. It does not read the store. The error is [ErrInvalid] or
// [ErrTooLarge].
func NewPool(store Store, o PoolOptions) (*Pool, error) {
	p := &Pool{store: store, ttl: o.TTL, now: o.Now, observer: o.Observer, index: newIndex()}
	p.reads.turn = make(chan struct{}, 1)
	if p.ttl == 0 {
		p.ttl = DefaultTTL
	}
	if p.now == nil {
		p.now = time.Now
	}
	if p.ttl < 0 {
		return nil, fmt.Errorf("%w TTL: %v is negative", ErrInvalid, p.ttl)
	}
	return p, p.SetRanges(o.Ranges...)
}

// Stats is the size and use of a range.
type Stats struct {
	// Size is how many keys can be allocated, Used how many are.
	Size, Used uint64
	// BandSize and BandUsed are the part of these in the lower band.
	BandSize, BandUsed uint64
}

// Free is how many keys are left.
func (s Stats) Free() uint64 { return s.Size - s.Used }

// RangeStatus is one range of a pool and how full it is in the pool's view of the store. A
// key that several ranges have counts in each.
type RangeStatus struct {
	// Config is the range as it was set.
	Config Config
	// Stats are the numbers of its keys.
	Stats Stats
}

// SetRanges replaces the pool's ranges. They may overlap. A range that is given
// several times is draining only if all of them are, and the other settings of the
// first one count.
//
// Keys of a range that was removed stay allocated, and can be released. With an error,
// [ErrInvalid] or [ErrTooLarge], the pool keeps its ranges.
func (p *Pool) SetRanges(ranges ...Config) error {
	parts, err := newParts(ranges)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.setParts(parts)
	return nil
}

// Ranges returns the ranges in the order in which they were set.
func (p *Pool) Ranges() []RangeStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []RangeStatus
	for _, r := range p.index.parts {
		all = append(all, RangeStatus{Config: r.config, Stats: r.stats()})
	}
	return all
}

// Lookup returns the claim of a key in the pool's view, which may be older than that of the
// store; see [Pool.Sync] and [Pool.Run]. It is false for a free key.
func (p *Pool) Lookup(key Key) (Claim, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.index.claims[key]
	return c, ok
}

// Claims returns all claims in the pool's view, in order of the keys: none before the pool
// has read the store for the first time.
func (p *Pool) Claims() []Claim {
	p.mu.Lock()
	claims := slices.Collect(maps.Values(p.index.claims))
	p.mu.Unlock()
	slices.SortFunc(claims, func(a, b Claim) int { return a.Key.Compare(b.Key) })
	return claims
}

// Sync reads the whole store. It returns the errors of the store, such as [ErrNoMap], and
// [ErrStale]; the pool's view is then unchanged.
func (p *Pool) Sync(ctx context.Context) error {
	doubts := p.doubts(nil)
	a := p.beginRequest()
	defer p.endRequest(a)
	state, err := p.fresh(ctx, 0, func() (State, error) { return p.store.Load(ctx) })
	if p.observer != nil {
		p.observer.Synced(err)
	}
	if err != nil {
		return fmt.Errorf("reading the store: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.resolve(doubts)
	p.index.replace(state.Claims, a.asOf(state))
	return nil
}

// request is a request to the store that is in flight.
type request struct {
	turn   int
	newest Version // the highest version seen when the request began
}

// asOf is a version that the reply includes. A state without a version is not outdated, so it
// includes all versions that were seen before the request.
func (a request) asOf(reply State) Version {
	if reply.Version == 0 {
		return a.newest
	}
	return reply.Version
}

// beginRequest records that a request to the store begins.
func (p *Pool) beginRequest() request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return request{turn: p.index.freed.beginRequest(), newest: p.index.newest}
}

// endRequest records that the pool has processed the answer to a request, or its error.
func (p *Pool) endRequest(a request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.freed.endRequest(a.turn)
}

// fresh reads the store until the reply is not older than the newest version that the
// pool or the caller has seen. So a claim that is missing from the reply was deleted.
func (p *Pool) fresh(ctx context.Context, newest Version, read func() (State, error)) (State, error) {
	p.mu.Lock()
	newest = max(newest, p.index.newest)
	p.mu.Unlock()
	var state State
	for attempt := range attempts {
		var err error
		state, err = read()
		if err != nil || state.Version == 0 || state.Version >= newest {
			return state, err
		}
		if err := pause.For(ctx, min(stalePause<<attempt, maxStalePause)); err != nil {
			return State{}, err
		}
	}
	return State{}, fmt.Errorf("read version %d after version %d: %w", state.Version, newest, ErrStale)
}

// doubts returns the keys whose outcome is unknown, among keys or, if that is nil, among
// all. Only a request that begins later can resolve them.
func (p *Pool) doubts(keys []Key) []Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.index.unsure) == 0 || keys == nil {
		return slices.Collect(maps.Keys(p.index.unsure))
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k Key) bool {
		_, isUnsure := p.index.unsure[k]
		return !isUnsure
	})
}

// prepare reads the store if the pool has never done so, and resolves changes whose
// outcome is unknown.
func (p *Pool) prepare(ctx context.Context) error {
	p.mu.Lock()
	isLoaded, unsure := p.index.isLoaded, slices.Collect(maps.Keys(p.index.unsure))
	p.mu.Unlock()
	if !isLoaded {
		return p.syncShared(ctx)
	}
	if len(unsure) == 0 {
		return nil
	}
	_, err := p.read(ctx, unsure, 0)
	return err
}

// read reads keys of the store into the index. It does not accept a reply that is older
// than newest, a version that the caller has seen.
func (p *Pool) read(ctx context.Context, keys []Key, newest Version) ([]Claim, error) {
	doubts := p.doubts(keys)
	a := p.beginRequest()
	defer p.endRequest(a)
	state, err := p.fresh(ctx, newest, func() (State, error) { return p.store.Get(ctx, keys...) })
	if err != nil {
		return nil, fmt.Errorf("reading %d keys: %w", len(keys), err)
	}
	found := make(map[Key]Claim, len(state.Claims))
	for _, c := range state.Claims {
		found[c.Key] = c
	}
	asOf := a.asOf(state)
	claims := make([]Claim, len(keys))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.resolve(doubts)
	for i, k := range keys {
		claims[i] = found[k]
		p.index.correct(k, claims[i], asOf)
	}
	return claims, nil
}

// newToken returns a random token, so that two allocations do not have the same one.
func newToken() uint64 { return max(1, rand.Uint64()) }
