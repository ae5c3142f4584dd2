package allocator

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

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
