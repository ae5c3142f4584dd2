package proxy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A resync that finds no drift holds up neither a new snapshot that comes at the same time, nor the
// retry of a port.
func TestResyncWithoutDriftHoldsNothingUp(t *testing.T) {
	for name, tc := range map[string]struct {
		runner  Runner
		refuses bool // a port, once
		changes bool // in the first MinInterval
	}{
		"a new snapshot": {runner: Runner{MinInterval: 3 * second, ResyncInterval: second}, changes: true},
		"a retry":        {runner: Runner{RetryInterval: 10 * second, ResyncInterval: second}, refuses: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			tr, b := newTestTracker(), &watchful{}
			tr.UpdateService(apiService("web", "10.96.0.1"))
			tr.Synced()
			if tc.refuses {
				b.refuses.Store(1)
			}
			r := tc.runner
			r.Source, r.Backend = tr, b
			stop := goRun(t, &r)
			sleepAndWait(1500 * time.Millisecond)
			if tc.changes {
				tr.UpdateService(apiService("other", "10.96.0.2"))
			}
			sleepAndWait(3 * second)
			if full, partial := b.full.Load(), b.partial.Load(); full != 1 || partial != 1 {
				t.Errorf("%s: got %d full and %d other Applies, want 1 and 1", name, full, partial)
			}
			stop()
		})
	}
}

// Drift that has to wait, since an Apply took long, puts off neither the retry of a port nor the
// next resync.
func TestDriftThatWaitsHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, tr := &alert{noticed: make(chan struct{}, 1), takes: 20 * second}, newTestTracker()
		b.refuses.Store(1)
		tr.UpdateService(apiService("web", "10.96.0.1"))
		tr.Synced()
		r := &Runner{Source: tr, Backend: b, RetryInterval: 5 * second, ResyncInterval: time.Minute}
		stop := goRun(t, r)
		sleepAndWait(21 * second)
		b.drift()
		sleepAndWait(5 * second)
		if full, partial := b.full.Load(), b.partial.Load(); full != 1 || partial != 1 {
			t.Errorf("after 26 s: got %d full and %d other Applies, want 1 and 1", full, partial)
		}
		sleepAndWait(76 * second)
		if full := b.full.Load(); full != 2 {
			t.Errorf("after 102 s: got %d full Applies, want 2: one began after a minute without any", full)
		}
		stop()
	})
}

// While nothing is known to be applied, drift is no reason to try again earlier.
func TestDriftBeforeAnythingIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hopeless{alert: alert{noticed: make(chan struct{}, 1)}}
		r := &Runner{Source: newTestTracker(), Backend: b, RetryInterval: 10 * second}
		stop := goRun(t, r)
		sleepAndWait(9 * second)
		if full := b.full.Load(); full != 1 {
			t.Errorf("after 9 s: got %d Applies, want 1", full)
		}
		stop()
	})
}

// hopeless is a backend that others disturb in each Apply.
type hopeless struct{ alert }

func (b *hopeless) Apply(ctx context.Context, old, new Snapshot) error {
	err := b.alert.Apply(ctx, old, new)
	b.drift()
	return errors.Join(err, ErrDataplaneLost)
}
