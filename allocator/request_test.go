package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
)

// TestTooManyKeys wants what is absurd to be refused before any of it is tried, by an
// error that names the bound.
func TestTooManyKeys(t *testing.T) {
	store := newCounting()
	p, err := allocator.NewPool(store, allocator.PoolOptions{Ranges: configs(t, "fd00::/64", "10.0.0.0/8"), Observer: &diary{}})
	if err != nil {
		t.Fatal(err)
	}
	many := make([]allocator.Request, allocator.MaxKeys+1)
	for i := range many {
		many[i] = next(allocator.IPv6)
	}
	for name, requests := range map[string][]allocator.Request{
		"one more":            {{Kind: allocator.IPv6, Count: allocator.MaxKeys + 1}},
		"as many as there be": {{Kind: allocator.IPv6, Count: math.MaxInt}},
		"too many in all":     {{Kind: allocator.IPv6, Count: allocator.MaxKeys}, next(allocator.IPv4)},
		"a sum that overflows": {
			{Kind: allocator.IPv6, Count: math.MaxInt}, {Kind: allocator.IPv6, Count: math.MaxInt}, {Kind: allocator.IPv6, Count: 2},
		},
		"many requests": many,
	} {
		_, err := p.Reserve(t.Context(), "greedy", requests...)
		if !errors.Is(err, allocator.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(allocator.MaxKeys)) {
			t.Errorf("%s: got error %v, want one that names the bound of %d", name, err, allocator.MaxKeys)
		}
	}
	if diff := cmp.Diff(map[string]int{}, store.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if got := len(mustReserve(t, p, "web", allocator.Request{Kind: allocator.IPv6, Count: allocator.MaxKeys})); got != allocator.MaxKeys {
		t.Errorf("got %d keys, want %d", got, allocator.MaxKeys)
	}
	r := newRange(t, "fd00::/64")
	if _, err := r.AllocateN("greedy", 1<<24+1); !errors.Is(err, allocator.ErrInvalid) || !strings.Contains(err.Error(), "16777216") {
		t.Errorf("AllocateN: got error %v, want one that names the bound", err)
	}
}

// impatient is a context that ends when it is asked a second time.
type impatient struct {
	context.Context
	asked int
}

var errImpatient = errors.New("took too long")

func (c *impatient) Err() error {
	if c.asked++; c.asked > 1 {
		return errImpatient
	}
	return nil
}

// TestPlanningEnds wants a request that takes long to end with its context, and to
// leave nothing behind.
func TestPlanningEnds(t *testing.T) {
	p := newPool(t, newMemory(), "10.0.0.0/8")
	if err := p.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errImpatient)
	for name, ctx := range map[string]context.Context{"ended": ended, "ends": &impatient{Context: ended}} {
		claims, err := p.Reserve(ctx, "web", allocator.Request{Kind: allocator.IPv4, Count: 10_000})
		if !errors.Is(err, errImpatient) {
			t.Errorf("%s: got %d claims, error %v, want %v", name, len(claims), err, errImpatient)
		}
		if got := p.Ranges()[0].Stats.Used; got != 0 {
			t.Errorf("%s: %d keys are left", name, got)
		}
	}
}

// TestNothingIsAsked wants no request to need no store.
func TestNothingIsAsked(t *testing.T) {
	store := newCounting()
	p := newPool(t, store, "10.96.0.0/24")
	if err := p.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	store.calls = map[string]int{}
	claims, err := p.Reserve(t.Context(), "web")
	_, bindErr := p.Bind(t.Context())
	if err := errors.Join(err, bindErr, p.Release(t.Context())); err != nil || len(claims) != 0 || len(store.calls) != 0 {
		t.Errorf("got %v, error %v, calls %v, want nothing", claims, err, store.calls)
	}
}

// TestParticularKeysComeFirst wants a call that asks for any key and for a particular one to
// get both, in its order, and to leave nothing behind where there are not enough.
func TestParticularKeysComeFirst(t *testing.T) {
	requests := []allocator.Request{
		exactly(t, "30001"), {Kind: allocator.Port, Count: 2}, exactly(t, "30003"), next(allocator.Port), exactly(t, "30000"),
	}
	for range 20 {
		p := newPool(t, newMemory(), "30000-30005")
		if _, err := p.DryRun(t.Context(), "web", requests...); err != nil {
			t.Fatalf("a dry run: %v", err)
		}
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
	if got := len(mustReserve(t, p, "web", allocator.Request{Kind: allocator.Port, Count: 5})); got != 5 {
		t.Errorf("after calls that failed %d ports are free, want 5", got)
	}
}
