package allocator_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/allocator"
)

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
