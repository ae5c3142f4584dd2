package proxy

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// watchful is a backend that can tell whether it was tampered with.
type watchful struct {
	full, partial atomic.Int32
	drifted       atomic.Bool
}

func (b *watchful) Apply(_ context.Context, old, _ Snapshot) error {
	if old.IsZero() {
		b.full.Add(1)
	} else {
		b.partial.Add(1)
	}
	return nil
}

func (b *watchful) Cleanup(context.Context) error { return nil }

func (b *watchful) Drifted(context.Context) bool { return b.drifted.Load() }

// With a backend that can tell, a resync looks only when there is a reason to.
func TestResyncNeedsAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		tr.Synced()
		b := &watchful{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		r := &Runner{Source: tr, Backend: b, ResyncInterval: time.Second}
		go func() { done <- r.Run(ctx) }()

		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if full, partial := b.full.Load(), b.partial.Load(); full != 1 || partial != 0 {
			t.Errorf("in ten quiet seconds: got %d full and %d other Applies, want 1 and 0", full, partial)
		}
		b.drifted.Store(true)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if full, partial := b.full.Load(), b.partial.Load(); full != 4 || partial != 0 {
			t.Errorf("after three seconds of drift: got %d full and %d other Applies, want 4 and 0", full, partial)
		}
		b.drifted.Store(false)
		tr.UpdateService(apiService("web", "10.96.0.1"))
		synctest.Wait()
		if full, partial := b.full.Load(), b.partial.Load(); full != 4 || partial != 1 {
			t.Errorf("after a change: got %d full and %d other Applies, want 4 and 1", full, partial)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
