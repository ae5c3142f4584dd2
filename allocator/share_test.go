package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// slowLoad is a store that needs a second to return everything.
type slowLoad struct{ *counting }

func (s slowLoad) Load(ctx context.Context) (allocator.State, error) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return allocator.State{}, context.Cause(ctx)
	}
	return s.counting.Load(ctx)
}

// atOnce requests an address in many goroutines, and gives the errors.
func atOnce(ctx context.Context, p *allocator.Pool) (errs [32]error) {
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			_, errs[i] = p.Reserve(ctx, allocator.Owner(fmt.Sprint(i)), next(allocator.IPv4))
		})
	}
	all.Wait()
	return errs
}

// TestSharedReads checks that many requests that need the whole store at the same time read it
// together: the first ones of a pool, and those that find its ranges full.
func TestSharedReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := slowLoad{newCounting()}
		p := newPool(t, store, "10.96.0.0/29")
		full := 0
		for _, err := range atOnce(t.Context(), p) {
			if errors.Is(err, allocator.ErrFull) {
				full++
			} else if err != nil {
				t.Error(err)
			}
		}
		testenv.Same(t, 32-6, full, "requests that found the range full")
		if loads := store.calls["load"]; loads > 4 {
			t.Errorf("reads of the whole store by 32 requests: got %d, want 4 at most", loads)
		}
	})
}

// TestSharedReadIsNew checks that a request that finds the range full does not rely on a read
// that began before it: a key that was freed before the request must be found.
func TestSharedReadIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &lagging{Store: newMemory()}
		p, other := newPool(t, store, "10.96.0.0/29"), newPool(t, store, "10.96.0.0/29")
		claims := mustReserve(t, other, "other", allocator.Request{Kind: allocator.IPv4, Count: 6})
		testenv.NoError(t, p.Sync(t.Context()))
		release, full := store.hold("load"), make(chan error, 1)
		go func() {
			_, err := p.Reserve(t.Context(), "early", next(allocator.IPv4))
			full <- err
		}()
		synctest.Wait() // the reply that the range is full is on its way
		mustRelease(t, other, claims[0])
		found := make(chan error, 1)
		go func() {
			_, err := p.Reserve(t.Context(), "late", next(allocator.IPv4))
			found <- err
		}()
		synctest.Wait()
		release()
		if err := <-full; !errors.Is(err, allocator.ErrFull) {
			t.Errorf("the early request: got error %v, want %v", err, allocator.ErrFull)
		}
		if err := <-found; err != nil {
			t.Errorf("the late request: %v", err)
		}
	})
}

// TestSharedReadFails checks that a shared read gives its error to all that wait for it, but
// not that of a context that only one of them has.
func TestSharedReadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := slowLoad{newCounting()}
		store.err = errors.New("no reply")
		p := newPool(t, store, "10.96.0.0/24")
		begin := time.Now()
		for _, err := range atOnce(t.Context(), p) {
			if !errors.Is(err, store.err) {
				t.Errorf("got error %v, want %v", err, store.err)
			}
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("failing took %v, want two reads at most", took)
		}
		store.err = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		early := make(chan error, 1)
		go func() {
			_, err := p.Reserve(ctx, "early", next(allocator.IPv4))
			early <- err
		}()
		synctest.Wait()
		for _, err := range atOnce(t.Context(), p) {
			if err != nil {
				t.Errorf("after another request has given up: %v", err)
			}
		}
		if err := <-early; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the request that gave up: got error %v, want %v", err, context.DeadlineExceeded)
		}
	})
}
