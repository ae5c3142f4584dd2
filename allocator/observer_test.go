package allocator_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// recorder is an observer that records every call as a line.
type recorder struct{ lines []string }

func (d *recorder) Allocated(a allocator.Allocation) {
	reason := allocator.Reason("ok")
	errors.As(a.Err, &reason)
	if a.Took < 0 {
		reason += ", after a negative time"
	}
	d.lines = append(d.lines, fmt.Sprintf("%d of %v %q static=%t: %s", a.Count, a.Kind, a.Range, a.IsStatic, reason))
}

func (d *recorder) Synced(err error) { d.lines = append(d.lines, fmt.Sprint("read: ", err)) }

func TestObserver(t *testing.T) {
	d := &recorder{}
	store := newCounting()
	p, err := allocator.NewPool(store, allocator.PoolOptions{Ranges: configs(t, "10.96.0.0/24", "30000-30001"), Observer: d})
	testenv.NoError(t, err)
	mustReserve(t, p, "web", exactly(t, "10.96.0.1"), allocator.Request{Kind: allocator.Port, Count: 2})
	if _, err := p.DryRun(t.Context(), "db", next(allocator.IPv4)); err != nil {
		t.Error(err)
	}
	for _, q := range []allocator.Request{exactly(t, "10.96.0.1"), exactly(t, "10.97.0.1"), next(allocator.Port)} {
		if claims, err := p.Reserve(t.Context(), "db", q); err == nil {
			t.Errorf("got %v, want an error", claims)
		}
	}
	store.err = errors.New("gone")
	if err := p.Sync(t.Context()); !errors.Is(err, store.err) {
		t.Errorf("got error %v, want %v", err, store.err)
	}
	want := []string{
		"read: <nil>",
		`1 of IPv4 "10.96.0.0/24" static=true: ok`,
		`2 of port "30000-30001" static=false: ok`,
		`0 of IPv4 "10.96.0.0/24" static=true: already allocated`,
		`0 of IPv4 "10.96.0.0/24" static=true: not in the valid range`,
		"read: <nil>",
		`0 of port "30000-30001" static=false: range is full`,
		"read: gone",
	}
	if diff := cmp.Diff(want, d.lines); diff != "" {
		t.Errorf("calls of the observer (-want +got):\n%s", diff)
	}
}

// TestObserverOfSeveralRanges checks that each range has an Allocation of its own.
func TestObserverOfSeveralRanges(t *testing.T) {
	d := &recorder{}
	o := allocator.PoolOptions{Ranges: configs(t, "10.96.0.0/29", "10.97.0.0/29!", "10.98.0.0/29"), Observer: d}
	p, err := allocator.NewPool(newMemory(), o)
	testenv.NoError(t, err)
	mustReserve(t, p, "web", allocator.Request{Kind: allocator.IPv4, Count: 12})
	for _, q := range []allocator.Request{
		exactly(t, "10.98.0.1"), exactly(t, "10.97.0.1"), next(allocator.IPv6), {Kind: allocator.IPv4, Count: math.MaxInt},
	} {
		if claims, err := p.Reserve(t.Context(), "db", q); err == nil {
			t.Errorf("got %v, want an error", claims)
		}
	}
	want := []string{
		"read: <nil>",
		`6 of IPv4 "10.96.0.0/29" static=false: ok`,
		`6 of IPv4 "10.98.0.0/29" static=false: ok`,
		`0 of IPv4 "10.98.0.0/29" static=true: already allocated`,
		`0 of IPv4 "10.96.0.0/29" static=true: not in the valid range`,
		`0 of IPv4 "10.98.0.0/29" static=true: not in the valid range`,
		"read: <nil>",
		`0 of IPv6 "" static=false: range is full`,
		`0 of IPv4 "10.96.0.0/29" static=false: invalid`,
		`0 of IPv4 "10.98.0.0/29" static=false: invalid`,
	}
	if diff := cmp.Diff(want, d.lines); diff != "" {
		t.Errorf("calls of the observer (-want +got):\n%s", diff)
	}
}
