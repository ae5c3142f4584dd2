package allocator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
)

// DefaultTTL is how long a reservation lasts unless [PoolOptions] say otherwise.
const DefaultTTL = time.Minute

// attempts is how often an operation starts again after others were faster,
// before it fails with ErrConflict.
const attempts = 32

// rereadAfter is after how many attempts an allocation reads the whole store.
const rereadAfter = 4

// Bounds of the pause before a store is asked again that answered from the past.
const (
	stalePause    = time.Millisecond
	maxStalePause = 16 * time.Millisecond
)

// Pool hands out the keys of several ranges and keeps them in a store that any
// number of other pools, in other processes, may use too.
//
// The store decides. What a pool keeps in memory only tells it what to try: each
// change has a precondition, and so no two owners ever get one key, whatever the
// pool has missed. No lock is held while the store is asked.
//
// Any number of goroutines may use a Pool.
type Pool struct {
	store    Store
	ttl      time.Duration
	now      func() time.Time
	observer Observer

	mu    sync.Mutex
	index index
}

// PoolOptions says how a pool works. The zero value of each field is its
// default.
type PoolOptions struct {
	// Ranges are what the pool begins with; see [Pool.SetRanges].
	Ranges []Config
	// TTL is how long a reservation lasts that is not bound, [DefaultTTL] by
	// default. It must be longer than it takes to bind one, and than the clocks
	// of those who share a store differ. Where a clock is set forward by more, reservations
	// may end early, so that Bind fails; where it is set back, they end when a pool that
	// runs has known them for as long as they were to last.
	TTL time.Duration
	// Now is the clock, [time.Now] by default.
	Now func() time.Time
	// Observer learns what the pool does; nobody by default.
	Observer Observer
}

// NewPool makes a pool. The store is asked first when it is needed. The error is
// [ErrInvalid] or [ErrTooLarge].
func NewPool(store Store, o PoolOptions) (*Pool, error) {
	p := &Pool{store: store, ttl: o.TTL, now: o.Now, observer: o.Observer, index: newIndex()}
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

// RangeStatus is one range of a pool and how full it is, as far as the pool knows. A key
// that several ranges have counts in each.
type RangeStatus struct {
	Config Config
	Stats  Stats
}

// SetRanges makes the pool's ranges these, in place of those that it had. They
// may overlap. If a range comes several times, it is draining only if all of them
// say so, and the first one's other settings count.
//
// What was allocated from a range that is gone stays allocated, and can be
// released. With an error, [ErrInvalid] or [ErrTooLarge], the pool keeps the ranges that it
// has.
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

// Ranges gives the ranges in the order in which they were set.
func (p *Pool) Ranges() []RangeStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []RangeStatus
	for _, r := range p.index.parts {
		all = append(all, RangeStatus{Config: r.config, Stats: r.stats()})
	}
	return all
}

// Stats tells how full all ranges of a kind are together that are not draining, as far as
// the pool knows, in constant time. A key that several ranges have counts once; the bands of
// several ranges have no sum and are left out.
func (p *Pool) Stats(kind Kind) Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kind > Port {
		return Stats{}
	}
	return Stats{Size: p.index.size[kind], Used: p.index.used[kind]}
}

// Lookup tells what the pool knows of a key, which may be older than what the
// store does; see [Pool.Sync] and [Pool.Run]. It is false for a key that nobody has.
func (p *Pool) Lookup(key Key) (Claim, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.index.claims[key]
	return c, ok
}

// Claims gives everything that the pool knows to be taken, in order of the keys: nothing
// before the store was read for the first time.
func (p *Pool) Claims() []Claim {
	p.mu.Lock()
	claims := p.index.all()
	p.mu.Unlock()
	sortClaims(claims)
	return claims
}

// Sync reads the whole store, so that the pool knows what is there now. The errors are those
// of the store, such as [ErrNoMap], and [ErrStale]; the pool then knows what it knew before.
func (p *Pool) Sync(ctx context.Context) error {
	doubts := p.doubts(nil)
	defer p.answered(p.ask())
	state, err := p.fresh(ctx, 0, func() (State, error) { return p.store.Load(ctx) })
	if p.observer != nil {
		p.observer.Synced(err)
	}
	if err != nil {
		return fmt.Errorf("reading the store: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.settle(doubts)
	p.index.replace(state)
	return nil
}

// asked is an answer of the store that is on its way.
type asked struct {
	turn   int
	newest Version // that was known of when it was asked for
}

// ask notes that the store is asked for something, or to change something.
func (p *Pool) ask() asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return asked{turn: p.index.freed.ask(), newest: p.index.newest}
}

// answered notes that the pool knows the answer now, or that there is none.
func (p *Pool) answered(a asked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.freed.answered(a.turn)
}

// fresh asks the store until the answer is not older than what the pool, or the
// caller, knew before it asked. What is missing from such an answer is gone for good,
// and not yet to come.
func (p *Pool) fresh(ctx context.Context, newest Version, ask func() (State, error)) (State, error) {
	p.mu.Lock()
	newest = max(newest, p.index.newest)
	p.mu.Unlock()
	var state State
	for attempt := range attempts {
		var err error
		state, err = ask()
		if err != nil || state.Version == 0 || state.Version >= newest {
			return state, err
		}
		if err := pause.For(ctx, min(stalePause<<attempt, maxStalePause)); err != nil {
			return State{}, err
		}
	}
	return State{}, fmt.Errorf("version %d, where %d was seen: %w", state.Version, newest, ErrStale)
}

// doubts gives those of some keys whose outcome is unknown; of all, if none are
// named. Only an answer that was asked for later can settle them.
func (p *Pool) doubts(keys []Key) []Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.index.unsure) == 0 || keys == nil {
		return p.index.unsureKeys()
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k Key) bool {
		_, isUnsure := p.index.unsure[k]
		return !isUnsure
	})
}

// prepare reads the store if that was never done, and finds out what became of
// changes whose outcome was unknown.
func (p *Pool) prepare(ctx context.Context) error {
	p.mu.Lock()
	isLoaded, unsure := p.index.isLoaded, p.index.unsureKeys()
	p.mu.Unlock()
	if !isLoaded {
		return p.Sync(ctx)
	}
	if len(unsure) == 0 {
		return nil
	}
	_, err := p.read(ctx, unsure, 0)
	return err
}

// read asks the store for keys, and remembers the answer. One that is older than a
// version that the caller has seen does not count.
func (p *Pool) read(ctx context.Context, keys []Key, newest Version) ([]Claim, error) {
	doubts := p.doubts(keys)
	a := p.ask()
	defer p.answered(a)
	state, err := p.fresh(ctx, newest, func() (State, error) { return p.store.Get(ctx, keys...) })
	if err != nil {
		return nil, fmt.Errorf("reading %d keys: %w", len(keys), err)
	}
	found := make(map[Key]Claim, len(state.Claims))
	for _, c := range state.Claims {
		found[c.Key] = c
	}
	asOf := state.Version
	if asOf == 0 {
		asOf = a.newest // It does not say, but is not from before it was asked for.
	}
	claims := make([]Claim, len(keys))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.settle(doubts)
	for i, k := range keys {
		claims[i] = found[k]
		p.index.correct(k, claims[i], asOf)
	}
	return claims, nil
}

// newToken names an allocation. Nobody must be able to have the same one by
// chance.
func newToken() uint64 { return max(1, rand.Uint64()) }
