package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counting is a backend that counts one operation for each Apply that finds drift.
type counting struct {
	*alert
	operations atomic.Uint64
	dirty      atomic.Bool
}

func (b *counting) Apply(ctx context.Context, old, new Snapshot) error {
	if b.dirty.Swap(false) {
		b.operations.Add(1)
	}
	return b.alert.Apply(ctx, old, new)
}

func (b *counting) Abilities() Abilities {
	a := b.alert.Abilities()
	a.Operations = b.operations.Load
	return a
}

// A repair verifies the dataplane. While other programs undo each repair, repairs verify
// nothing, although the dataplane is right for a moment after each; once it stays right, the
// next resync verifies it. Other programs that write what exists already make no difference.
func TestRepairsThatDoNotLastVerifyNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &counting{alert: &alert{noticed: make(chan struct{}, 1), takes: time.Millisecond}}
		var verified atomic.Int32
		tr := newTestTracker()
		tr.Synced()
		r := &Runner{Source: tr, Backend: b, ResyncInterval: time.Minute, Observers: []Observer{{Verified: func(Snapshot) { verified.Add(1) }}}}
		stop := goRun(t, r)
		want := func(when string, n int32) {
			t.Helper()
			synctest.Wait()
			if got := verified.Swap(0); got != n {
				t.Errorf("%s: verified %d times, want %d", when, got, n)
			}
		}
		b.dirty.Store(true)
		time.Sleep(time.Second)
		want("at first", 1)
		for i := range 300 {
			b.dirty.Store(true)
			b.drift()
			time.Sleep(time.Second)
			want(fmt.Sprintf("repair %d in a row", i+1), map[bool]int32{true: 1}[i == 0])
		}
		time.Sleep(time.Minute)
		want("a quiet minute later", 1)
		for range 10 {
			b.drift()
			time.Sleep(time.Second)
			want("other programs write what exists already", 1)
		}
		b.dirty.Store(true)
		b.drift()
		time.Sleep(time.Second)
		want("another repair", 1)
		time.Sleep(time.Minute)
		want("a quiet minute later", 1)
		b.dirty.Store(true)
		b.drift()
		time.Sleep(time.Second)
		want("a repair after a minute without one", 1)
		stop()
	})
}

// partial is an alert backend that notices only some changes, so that there may always be drift.
type partial struct{ alert }

func (b *partial) Abilities() Abilities { return Abilities{WaitDrift: b.WaitDrift} }

// A backend that cannot know about all changes verifies by a resync, also after it has noticed
// drift, but not if it notices drift during the resync.
func TestPartialNoticesVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &partial{alert{noticed: make(chan struct{}, 1), takes: time.Second}}
		var verified atomic.Int32
		r := &Runner{Source: newTestTracker(), Backend: b, ResyncInterval: time.Minute, Observers: []Observer{{Verified: func(Snapshot) { verified.Add(1) }}}}
		stop := goRun(t, r)
		want := func(when string, resyncs, times int32) {
			t.Helper()
			synctest.Wait()
			if full, seen := b.full.Load(), verified.Load(); full != resyncs || seen != times {
				t.Errorf("%s: got %d resyncs and verified %d times, want %d and %d", when, full, seen, resyncs, times)
			}
		}
		time.Sleep(2 * time.Second)
		want("at first", 1, 1)
		b.drift()
		time.Sleep(driftDelay + 500*time.Millisecond)
		b.drift()
		time.Sleep(driftDelay + 500*time.Millisecond)
		want("after drift during a resync", 2, 1)
		time.Sleep(2 * time.Second)
		want("after the resync that repaired it", 3, 2)
		time.Sleep(time.Minute + 2*time.Second)
		want("after the next resync", 4, 3)
		stop()
	})
}

// deaf is a partial backend that can notice drift only at times.
type deaf struct {
	partial
	fails atomic.Bool
}

func (b *deaf) Abilities() Abilities { return Abilities{WaitDrift: b.WaitDrift} }

func (b *deaf) WaitDrift(ctx context.Context) error {
	if b.fails.Load() {
		return io.ErrUnexpectedEOF
	}
	return b.partial.WaitDrift(ctx)
}

// While a backend that has noticed drift cannot wait for drift, resyncs verify nothing: other
// programs may have changed the dataplane during them.
func TestFailedWaitVerifiesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &deaf{partial: partial{alert{noticed: make(chan struct{}, 1), takes: time.Second}}}
		var verified atomic.Int32
		r := &Runner{Source: newTestTracker(), Backend: b, ResyncInterval: time.Minute, Observers: []Observer{{Verified: func(Snapshot) { verified.Add(1) }}}}
		stop := goRun(t, r)
		want := func(when string, n int32) {
			t.Helper()
			synctest.Wait()
			if got := verified.Swap(0); got != n {
				t.Errorf("%s: verified %d times, want %d", when, got, n)
			}
		}
		time.Sleep(2 * time.Second)
		want("at first", 1)
		b.fails.Store(true)
		b.drift()
		time.Sleep(3*time.Minute + 30*time.Second)
		want("while waiting fails", 0)
		b.fails.Store(false)
		time.Sleep(2 * time.Minute)
		want("when it waits again", 2)
		stop()
	})
}

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
