package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const ttl = time.Minute

// world has several pools that share one store, and records the owner of each key.
type world struct {
	t      *testing.T
	rnd    *rand.Rand
	store  allocator.Store
	owners *storetest.Owners
	// setsClocks says that clocks are set at random times.
	setsClocks bool

	mu sync.Mutex
	// doubtful are owners that stopped in the middle of binding or releasing.
	doubtful map[allocator.Owner]bool
}

func small() []allocator.Config {
	return []allocator.Config{
		{Prefix: netip.MustParsePrefix("10.96.0.0/27")},
		{Prefix: netip.MustParsePrefix("fd00::/122")},
		{FirstPort: 30000, LastPort: 30040},
	}
}

func newPool(t *testing.T, s allocator.Store, now func() time.Time) *allocator.Pool {
	t.Helper()
	p, err := allocator.NewPool(s, allocator.PoolOptions{Ranges: small(), TTL: ttl, Now: now})
	testenv.NoError(t, err)
	return p
}

func (w *world) random(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

// clock returns a clock that is set at random times by up to an hour, forward or back.
func (w *world) clock() func() time.Time {
	if !w.setsClocks {
		return nil
	}
	var mu sync.Mutex
	var by time.Duration
	return func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		if w.random(10) == 0 {
			by = time.Duration(w.random(7200)-3600) * time.Second
		}
		return time.Now().Add(by).Round(0)
	}
}

func (w *world) doubt(owner allocator.Owner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doubtful[owner] = true
}

// live reserves, binds and releases the keys of one owner, each by a random pool.
func (w *world) live(ctx context.Context, pools []*allocator.Pool, owner allocator.Owner) {
	pool := func() *allocator.Pool { return pools[w.random(len(pools))] }
	request := allocator.Request{Kind: allocator.IPv4}
	if w.random(3) == 0 {
		request = allocator.Request{Key: storetest.Key(1 + w.random(30))}
	}
	claims, err := pool().Reserve(ctx, owner, request, allocator.Request{Kind: allocator.IPv6},
		allocator.Request{Kind: allocator.Port, Count: 1 + w.random(2)})
	if err != nil || w.random(8) == 0 { // The owner is never stored.
		return
	}
	time.Sleep(time.Duration(w.random(70)) * time.Second) // virtual; may be longer than the TTL
	bound, err := pool().Bind(ctx, claims...)
	if err != nil {
		if !errors.Is(err, allocator.ErrExpired) {
			w.doubt(owner)
		}
		return
	}
	w.owners.Bound(bound)
	if w.random(4) == 0 {
		return
	}
	time.Sleep(time.Duration(w.random(100)) * time.Second)
	w.owners.Released(bound)
	if err := pool().Release(ctx, bound...); err != nil {
		w.doubt(owner)
	}
	if w.random(3) == 0 { // again, and late
		time.Sleep(ttl)
		if err := pool().Release(ctx, claims...); err != nil {
			w.doubt(owner)
		}
	}
}

// check reads the store after the TTL: every claim must have an owner.
func (w *world) check(ctx context.Context) {
	w.t.Helper()
	time.Sleep(2 * ttl)
	sweeper := newPool(w.t, w.store, nil)
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { sweeper.Run(running) })
	time.Sleep(2 * ttl)
	stop()
	wg.Wait()
	state, err := w.store.Load(ctx)
	testenv.NoError(w.t, err)
	w.owners.WantBindings(20)
	owners, held := w.owners.Held(), map[allocator.Key]allocator.Owner{}
	for _, c := range state.Claims {
		held[c.Key] = c.Owner
		if owners[c.Key] != c.Owner && (!c.IsBound() || !w.doubtful[c.Owner]) {
			w.t.Errorf("%v: claim of %q, want one of its owner %q", c.Key, c.Owner, owners[c.Key])
		}
	}
	for k, owner := range owners {
		if held[k] != owner {
			w.t.Errorf("%v: claim of %q, want one of its owner %q", k, held[k], owner)
		}
	}
}

// TestWorlds has pools that share a store with one kind of fault, or with all.
func TestWorlds(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]faults{
		"none":          {},
		"lost replies":  {LostAnswer: 0.3},
		"lost requests": {LostRequest: 0.3, LostRead: 0.2},
		"duplicates":    {Duplicate: 0.3, Late: 0.3},
		"conflicts":     {Conflict: 0.6},
		"stale reads":   {Stale: 0.3},
		"all": {
			LostAnswer: 0.1, LostRequest: 0.1, LostRead: 0.1, Duplicate: 0.1, Late: 0.1, Conflict: 0.1, Stale: 0.1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			rnd := testenv.Random(t)
			for range 5 {
				synctest.Test(t, func(t *testing.T) { runWorld(t, rnd, faults, inMemory(rnd)) })
			}
		})
	}
}

// TestWorldsWhoseClocksAreSet does the same with clocks that are set by up to an hour: no key
// has two owners, and in the end every key that is allocated has one.
func TestWorldsWhoseClocksAreSet(t *testing.T) {
	t.Parallel()
	rnd := testenv.Random(t)
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			runWorldWith(t, rnd, faults{LostAnswer: 0.05, Stale: 0.05}, inMemory(rnd), true)
		})
	}
}

// inMemory makes a store with or without a journal, at random.
func inMemory(rnd *rand.Rand) *allocator.Memory {
	if rnd.IntN(2) == 0 {
		return allocator.NewMemory(allocator.State{}, nowhere{})
	}
	return allocator.NewMemory(allocator.State{}, nil)
}

func runWorld(t *testing.T, rnd *rand.Rand, faults faults, store allocator.Store) {
	runWorldWith(t, rnd, faults, store, false)
}

// runWorldWith may set the clock of each allocator now and then.
func runWorldWith(t *testing.T, rnd *rand.Rand, faults faults, store allocator.Store, setsClocks bool) {
	const count, workers, lives = 4, 3, 15
	w := &world{
		t: t, rnd: rnd, store: store, setsClocks: setsClocks,
		owners: storetest.NewOwners(t), doubtful: map[allocator.Owner]bool{},
	}
	faulty := newFaulty(w.store, rand.New(rand.NewPCG(rnd.Uint64(), 0)), faults)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running, living sync.WaitGroup
	var pools []*allocator.Pool
	for n := range count {
		p := newPool(t, faulty, w.clock())
		pools = append(pools, p)
		if n%2 == 0 { // The other pools do not watch.
			running.Go(func() { p.Run(ctx) })
		}
	}
	for n := range pools {
		for worker := range workers {
			living.Go(func() {
				for life := range lives {
					w.live(ctx, pools, allocator.Owner(fmt.Sprintf("%d-%d-%d", n, worker, life)))
				}
			})
		}
	}
	living.Wait()
	cancel()
	running.Wait()
	w.check(t.Context())
}

// TestCrashAtEveryStep ends a process at each of its calls to the store, before the call
// reaches the store and after. After the TTL its keys must be free, or bound to an owner
// whose object may exist.
func TestCrashAtEveryStep(t *testing.T) {
	t.Parallel()
	for calls := range 10 {
		for _, after := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) { crash(t, calls, after) })
		}
	}
}

func crash(t *testing.T, calls int, after bool) {
	inner := allocator.NewMemory(allocator.State{}, nil)
	mortal := &mortal{Store: inner, Left: calls, After: after}
	isOwner, err := liveAndCrash(t, newPool(t, mortal, nil))
	if err != nil && !errors.Is(err, errCrashed) {
		t.Fatalf("call %d, after=%t: %v", calls, after, err)
	}
	time.Sleep(ttl)
	for _, k := range []allocator.Kind{allocator.IPv4, allocator.Port} {
		free, bound, want := inventory(t, inner, k)
		if free+bound != want || bound > 0 && !isOwner {
			t.Errorf("call %d, after=%t: free keys: got %d of %d, bound: %d; an owner may exist: %t",
				calls, after, free, want, bound, isOwner)
		}
	}
}

// liveAndCrash reserves, binds and releases, and reports whether an object that owns
// the keys may exist at the end.
func liveAndCrash(t *testing.T, p *allocator.Pool) (isOwner bool, err error) {
	ctx := t.Context()
	claims, err := p.Reserve(ctx, "me", allocator.Request{Kind: allocator.IPv4}, allocator.Request{Kind: allocator.Port, Count: 3})
	if err != nil {
		return false, err
	}
	// The object is stored here, ...
	if claims, err = p.Bind(ctx, claims...); err != nil {
		return true, err
	}
	// ... and deleted here.
	err = p.Release(ctx, claims...)
	return err != nil, err
}

// inventory counts the keys that another process can allocate, and the bound ones.
func inventory(t *testing.T, store allocator.Store, kind allocator.Kind) (free, bound, size uint64) {
	p := newPool(t, store, nil)
	testenv.NoError(t, p.Sync(t.Context()))
	for ; free < 100; free++ {
		if _, err := p.Reserve(t.Context(), "other", allocator.Request{Kind: kind}); err != nil {
			break
		}
	}
	for _, c := range p.Claims() {
		if c.Owner == "me" && c.Key.Kind() == kind && c.IsBound() {
			bound++
		}
	}
	return free, bound, sizeOf(p, kind)
}

// sizeOf is the number of keys of a kind.
func sizeOf(p *allocator.Pool, kind allocator.Kind) (n uint64) {
	for _, r := range p.Ranges() {
		if keys, err := allocator.NewRange(r.Config); err == nil && keys.Key(0).Kind() == kind {
			n += r.Stats.Size
		}
	}
	return n
}
