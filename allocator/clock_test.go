package allocator

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testenv"
)

// clock is a clock that the test can set.
type clock struct {
	mu sync.Mutex
	by time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.by).Round(0)
}

func (c *clock) set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by += by
}

// TestClockIsSet sets the clock after a reservation was made. The reservation must not
// keep its key for longer than twice the TTL, and a bound claim must keep its key.
func TestClockIsSet(t *testing.T) {
	const ttl = time.Minute
	for name, by := range map[string]time.Duration{
		"not at all": 0, "an hour back": -time.Hour, "an hour forward": time.Hour,
		"seventy years back": -70 * 365 * 24 * time.Hour, "a little back": -ttl / 2, "a little forward": ttl / 2,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { clockIsSet(t, ttl, by) })
		})
	}
}

func clockIsSet(t *testing.T, ttl, by time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	c, store := &clock{}, NewMemory(State{}, nil)
	pool, err := NewPool(store, PoolOptions{Ranges: []Config{{FirstPort: 30000, LastPort: 30002}}, TTL: ttl, Now: c.now})
	testenv.NoError(t, err)
	running.Go(func() { _ = pool.Run(ctx) }) // It ends with its context.
	reserve := func(owner Owner) []Claim {
		claims, err := pool.Reserve(ctx, owner, Request{Kind: Port})
		if err != nil {
			t.Fatalf("reserving for %s: %v", owner, err)
		}
		return claims
	}
	bound, err := pool.Bind(ctx, reserve("bound")...)
	testenv.NoError(t, err)
	lost, slow := reserve("lost"), reserve("slow")
	time.Sleep(ttl / 4)
	c.set(by)
	time.Sleep(ttl / 2)
	_, err = pool.Bind(ctx, slow...)
	switch {
	case err == nil:
	case by <= 0 || !errors.Is(err, ErrExpired):
		t.Errorf("binding within the TTL: %v", err)
	}
	time.Sleep(2 * ttl)
	state, loadErr := store.Load(ctx)
	testenv.NoError(t, loadErr)
	held := map[Key]Owner{}
	for _, c := range state.Claims {
		held[c.Key] = c.Owner
	}
	want := map[Key]Owner{bound[0].Key: "bound"}
	if err == nil {
		want[slow[0].Key] = "slow"
	}
	if len(held) != len(want) || held[bound[0].Key] != "bound" || held[slow[0].Key] != want[slow[0].Key] {
		t.Errorf("the store holds %v, want %v", held, want)
	}
	if _, err := pool.Bind(ctx, lost...); !errors.Is(err, ErrExpired) {
		t.Errorf("binding a reservation that has ended: got error %v, want %v", err, ErrExpired)
	}
}

// TestReservationFromTheFuture has a reservation that was made by a clock that was ahead.
// Its key can be allocated, by name or as the only key, once a pool has seen the
// reservation for its TTL.
func TestReservationFromTheFuture(t *testing.T) {
	for name, request := range map[string]Request{"by name": {Key: PortKey(30000)}, "any": {Kind: Port}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				since := time.Now().Add(50000 * time.Hour).Round(0).UTC()
				store := NewMemory(State{Version: 1, Claims: []Claim{{
					Key: PortKey(30000), Owner: "gone", Token: 7, Version: 1, Since: since, Expires: since.Add(DefaultTTL),
				}}}, nil)
				pool, err := NewPool(store, PoolOptions{Ranges: []Config{{FirstPort: 30000, LastPort: 30000}}})
				testenv.NoError(t, err)
				if _, err := pool.Reserve(t.Context(), "me", request); !errors.Is(err, ErrAllocated) && !errors.Is(err, ErrFull) {
					t.Errorf("at first: got error %v, want that the key is allocated", err)
				}
				time.Sleep(DefaultTTL - time.Second)
				if _, err := pool.Reserve(t.Context(), "me", request); !errors.Is(err, ErrAllocated) && !errors.Is(err, ErrFull) {
					t.Errorf("before its TTL: got error %v, want that the key is allocated", err)
				}
				time.Sleep(time.Second)
				claims, err := pool.Allocate(t.Context(), "me", request)
				if err != nil || claims[0].Key != PortKey(30000) {
					t.Errorf("after its TTL: got %v, error %v, want the key", claims, err)
				}
			})
		})
	}
}

// TestSetWhileReserving checks that a reservation lasts for the TTL even if the clock is
// set while it is made.
func TestSetWhileReserving(t *testing.T) {
	calls := 0
	now := func() time.Time {
		calls++
		return time.Unix(1_000_000, 0).Add(-time.Duration(calls) * time.Hour)
	}
	pool, err := NewPool(NewMemory(State{}, nil), PoolOptions{Ranges: []Config{{FirstPort: 30000, LastPort: 30009}}, Now: now})
	testenv.NoError(t, err)
	claims, err := pool.Reserve(t.Context(), "me", Request{Kind: Port})
	testenv.NoError(t, err)
	if got := claims[0].Expires.Sub(claims[0].Since); got != DefaultTTL {
		t.Errorf("duration of the reservation: got %v, want %v", got, DefaultTTL)
	}
}
