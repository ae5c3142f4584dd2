package allocator_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestTooManyKeys checks that a request for too many keys is refused before any key is
// chosen, by an error that names the limit.
func TestTooManyKeys(t *testing.T) {
	store := newCounting()
	p, err := allocator.NewPool(store, allocator.PoolOptions{Ranges: configs(t, "fd00::/64", "10.0.0.0/8"), Observer: &recorder{}})
	testenv.NoError(t, err)
	many := make([]allocator.Request, allocator.MaxKeys+1)
	for i := range many {
		many[i] = next(allocator.IPv6)
	}
	for name, requests := range map[string][]allocator.Request{
		"one more":           {{Kind: allocator.IPv6, Count: allocator.MaxKeys + 1}},
		"the largest number": {{Kind: allocator.IPv6, Count: math.MaxInt}},
		"too many in all":    {{Kind: allocator.IPv6, Count: allocator.MaxKeys}, next(allocator.IPv4)},
		"a sum that overflows": {
			{Kind: allocator.IPv6, Count: math.MaxInt}, {Kind: allocator.IPv6, Count: math.MaxInt}, {Kind: allocator.IPv6, Count: 2},
		},
		"many requests": many,
	} {
		_, err := p.Reserve(t.Context(), "greedy", requests...)
		if !errors.Is(err, allocator.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(allocator.MaxKeys)) {
			t.Errorf("%s: got error %v, want one that names the limit of %d", name, err, allocator.MaxKeys)
		}
	}
	testenv.Same(t, map[string]int{}, store.calls, "calls")
	if got := len(mustReserve(t, p, "web", allocator.Request{Kind: allocator.IPv6, Count: allocator.MaxKeys})); got != allocator.MaxKeys {
		t.Errorf("got %d keys, want %d", got, allocator.MaxKeys)
	}
}

// TestNoRequests checks that calls without a request or claim do not call the store.
func TestNoRequests(t *testing.T) {
	store := newCounting()
	p := newPool(t, store, "10.96.0.0/24")
	testenv.NoError(t, p.Sync(t.Context()))
	store.calls = map[string]int{}
	claims, err := p.Reserve(t.Context(), "web")
	_, bindErr := p.Bind(t.Context())
	if err := errors.Join(err, bindErr, p.Release(t.Context())); err != nil || len(claims) != 0 || len(store.calls) != 0 {
		t.Errorf("got %v, error %v, calls %v, want nothing", claims, err, store.calls)
	}
}

// TestParticularKeysComeFirst checks that a call that requests any keys and particular
// ones gets both, in the order of the requests, and none if there are too few.
func TestParticularKeysComeFirst(t *testing.T) {
	requests := []allocator.Request{
		exactly(t, "30001"), {Kind: allocator.Port, Count: 2}, exactly(t, "30003"), next(allocator.Port), exactly(t, "30000"),
	}
	for range 20 {
		p := newPool(t, newMemory(), "30000-30005")
		var got []string
		for _, c := range mustReserve(t, p, "web", requests...) {
			got = append(got, c.Key.String())
		}
		if len(got) != 6 || got[0] != "30001" || got[3] != "30003" || got[5] != "30000" {
			t.Fatalf("got %v, want 30001, two others, 30003, one more, and 30000", got)
		}
	}
	p := newPool(t, newMemory(), "30000-30004")
	if _, err := p.Reserve(t.Context(), "web", requests...); !errors.Is(err, allocator.ErrFull) {
		t.Errorf("got error %v, want %v", err, allocator.ErrFull)
	}
	if _, err := p.Reserve(t.Context(), "web", requests[1], requests[0], requests[0]); !errors.Is(err, allocator.ErrAllocated) {
		t.Errorf("one key twice: got error %v, want %v", err, allocator.ErrAllocated)
	}
	testenv.Same(t, 5, len(mustReserve(t, p, "web", allocator.Request{Kind: allocator.Port, Count: 5})), "free ports after calls that failed")
}
