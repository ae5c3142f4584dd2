package proxy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// watchful is a backend that can tell whether it was tampered with.
type watchful struct {
	full, partial int
	drifted       bool
}

func (b *watchful) Apply(_ context.Context, old, _ Snapshot) error {
	if old.IsZero() {
		b.full++
	} else {
		b.partial++
	}
	return nil
}

func (b *watchful) Cleanup(context.Context) error { return nil }

func (b *watchful) Drifted(context.Context) bool { return b.drifted }

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
		if b.full != 1 || b.partial != 0 {
			t.Errorf("in ten quiet seconds: got %d full and %d other Applies, want 1 and 0", b.full, b.partial)
		}
		b.drifted = true
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if b.full != 4 || b.partial != 0 {
			t.Errorf("after three seconds of drift: got %d full and %d other Applies, want 4 and 0", b.full, b.partial)
		}
		b.drifted = false
		tr.UpdateService(apiService("web", "10.96.0.1"))
		synctest.Wait()
		if b.full != 4 || b.partial != 1 {
			t.Errorf("after a change: got %d full and %d other Applies, want 4 and 1", b.full, b.partial)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
