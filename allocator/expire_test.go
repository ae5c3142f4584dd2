package allocator

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestExpireReadsAgain has a pool whose view is outdated: it has a reservation that has
// ended, but the owner has bound it meanwhile. expire must not free it.
func TestExpireReadsAgain(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	store := NewMemory(State{}, nil)
	o := PoolOptions{Ranges: []Config{{FirstPort: 30000, LastPort: 30009}}, Now: func() time.Time { return now }}
	owners, err1 := NewPool(store, o)
	others, err2 := NewPool(store, o)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	claims, err := owners.Reserve(t.Context(), "me", Request{Kind: Port}, Request{Kind: Port})
	testenv.NoError(t, err)
	testenv.NoError(t, others.Sync(t.Context()))
	now = now.Add(DefaultTTL)
	if _, err := owners.Bind(t.Context(), claims[0]); err != nil {
		t.Fatal(err)
	}
	testenv.NoError(t, others.expire(t.Context()))
	state, err := store.Load(t.Context())
	if err != nil || len(state.Claims) != 1 || state.Claims[0].Key != claims[0].Key {
		t.Errorf("got %v, error %v, want only %v, which is bound", state.Claims, err, claims[0].Key)
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

// TestFreed begins requests that end in any order, and frees keys meanwhile. freed must
// have the keys that were freed since a request began until it ends, and few older ones.
func TestFreed(t *testing.T) {
	type request struct {
		turn  int
		freed map[Key]Version
	}
	rnd := testenv.Random(t)
	var f freed
	var waiting []request
	for version := Version(1); version < 20_000; version++ {
		switch {
		case len(waiting) < 1+rnd.IntN(8): // A request is nearly always in flight.
			waiting = append(waiting, request{f.beginRequest(), map[Key]Version{}})
		case rnd.IntN(2) == 0:
			at := rnd.IntN(len(waiting))
			for k, v := range waiting[at].freed {
				if !f.has(Claim{Key: k, Version: v}) {
					t.Fatalf("%v was freed by change %d while a request was in flight: got has false, want true", k, v)
				}
			}
			f.endRequest(waiting[at].turn)
			waiting = append(waiting[:at], waiting[at+1:]...)
		default:
			k := PortKey(uint16(1 + rnd.IntN(60_000)))
			f.note(k, version)
			for _, w := range waiting {
				w.freed[k] = version
			}
			if f.has(Claim{Key: k, Version: version + 1}) {
				t.Fatalf("has of a claim of version %d after the deletion at %d: got true, want false", version+1, version)
			}
		}
		if n := len(f.keys[0]) + len(f.keys[1]); n > 1000 {
			t.Fatalf("keys in freed while no request takes long: got %d, want at most 1000", n)
		}
	}
	for _, w := range waiting {
		f.endRequest(w.turn)
	}
	if f.note(PortKey(1), 1); len(f.keys[0])+len(f.keys[1]) > 0 {
		t.Errorf("keys in freed without a request in flight: got %v, want none", f.keys)
	}
}
