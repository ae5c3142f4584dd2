package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"testing"
	"testing/synctest"
	"time"

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
	testenv.Same(t, want, d.lines, "calls of the observer")
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
	testenv.Same(t, want, d.lines, "calls of the observer")
}

// restless is a store whose watches end after lasts.
type restless struct {
	allocator.Store
	err   error
	lasts time.Duration
	loads int
}

func (r *restless) Load(ctx context.Context) (allocator.State, error) {
	r.loads++
	return r.Store.Load(ctx)
}

func (r *restless) Watch(ctx context.Context, _ allocator.Version) iter.Seq2[allocator.Event, error] {
	return func(yield func(allocator.Event, error) bool) {
		select {
		case <-time.After(r.lasts):
			yield(allocator.Event{}, r.err)
		case <-ctx.Done():
			yield(allocator.Event{}, context.Cause(ctx))
		}
	}
}

// TestPauseGrowsWhileWatchesFail checks that Run does not read a store all the time whose
// watches fail soon, and reads it soon again after a watch that has lasted.
func TestPauseGrowsWhileWatchesFail(t *testing.T) {
	for _, c := range []struct {
		name        string
		lasts       time.Duration
		err         error
		least, most int // reads within ten minutes
	}{
		{"fails at once", 0, errors.New("no"), 100, 140},
		{"is always compacted", 0, allocator.ErrCompacted, 100, 140},
		{"lasts half a minute", 30 * time.Second, errors.New("no"), 19, 21},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &restless{Store: newMemory(), err: c.err, lasts: c.lasts}
				p := newPool(t, store, "10.96.0.0/24")
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				p.Run(ctx)
				if store.loads < c.least || store.loads > c.most {
					t.Errorf("reads in ten minutes: got %d, want %d to %d", store.loads, c.least, c.most)
				}
			})
		})
	}
}
