package proxy

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// watchful is a backend that can check for drift.
type watchful struct {
	NoAbilities
	full, partial atomic.Int32
	drifted       atomic.Bool
	refuses       atomic.Int32 // so many times, a port of a snapshot
}

func (b *watchful) Apply(_ context.Context, old, new Snapshot) error {
	if old.IsZero() {
		b.full.Add(1)
	} else {
		b.partial.Add(1)
	}
	for p := range new.All() {
		if b.refuses.Add(-1) >= 0 {
			return PortErrors{p.Name: io.ErrUnexpectedEOF}
		}
	}
	return nil
}

func (b *watchful) Cleanup(context.Context) error { return nil }

func (b *watchful) Drifted(context.Context) bool { return b.drifted.Load() }

func (b *watchful) Abilities() Abilities { return Abilities{Drifted: b.Drifted} }

// With a backend that can check for drift, a resync applies only after drift.
func TestResyncNeedsAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		tr.Synced()
		b := &watchful{}
		verified := 0
		r := &Runner{Source: tr, Backend: b, ResyncInterval: time.Second, Observers: []Observer{{Verified: func(s Snapshot) {
			if verified++; s.IsZero() {
				t.Error("verified the zero snapshot, want one that was applied")
			}
		}}}}
		stop := goRun(t, r)

		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if full, partial := b.full.Load(), b.partial.Load(); full != 1 || partial != 0 {
			t.Errorf("in ten quiet seconds: got %d full and %d other Applies, want 1 and 0", full, partial)
		}
		if verified != 11 {
			t.Errorf("in ten quiet seconds: verified %d times, want once by the first Apply and once a second", verified)
		}
		b.drifted.Store(true)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if full, partial := b.full.Load(), b.partial.Load(); full != 4 || partial != 0 {
			t.Errorf("after three seconds of drift: got %d full and %d other Applies, want 4 and 0", full, partial)
		}
		if verified != 14 {
			t.Errorf("after three seconds of drift: verified %d times, want 14", verified)
		}
		b.drifted.Store(false)
		tr.UpdateService(apiService("web", "10.96.0.1"))
		synctest.Wait()
		if full, partial := b.full.Load(), b.partial.Load(); full != 4 || partial != 1 {
			t.Errorf("after a change: got %d full and %d other Applies, want 4 and 1", full, partial)
		}
		if verified != 14 {
			t.Errorf("after a change: verified %d times, want still 14", verified)
		}
		stop()
	})
}

// alert is a watchful backend whose WaitDrift notices drift at once.
type alert struct {
	watchful
	noticed chan struct{} // has one element while there is drift
	waiting atomic.Int32
	takes   time.Duration
}

func (b *alert) drift() {
	b.drifted.Store(true)
	select {
	case b.noticed <- struct{}{}:
	default:
	}
}

func (b *alert) Apply(ctx context.Context, old, new Snapshot) error {
	if old.IsZero() {
		b.drifted.Store(false)
		select {
		case <-b.noticed:
		default:
		}
		time.Sleep(b.takes)
	}
	return b.watchful.Apply(ctx, old, new)
}

func (b *alert) Abilities() Abilities {
	return Abilities{Drifted: b.Drifted, WaitDrift: b.WaitDrift}
}

func (b *alert) WaitDrift(ctx context.Context) error {
	if b.waiting.Add(1) > 1 {
		panic("WaitDrift runs twice at once")
	}
	defer b.waiting.Add(-1)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-b.noticed:
		b.drift() // It stays noticed.
		return nil
	}
}

// Noticed drift is repaired at once, with changes before and after it, with and without a
// ResyncInterval.
func TestDriftIsRepairedAtOnce(t *testing.T) {
	for _, interval := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			tr := newTestTracker()
			b := &alert{noticed: make(chan struct{}, 1)}
			r := &Runner{Source: tr, Backend: b, ResyncInterval: interval}
			stop := goRun(t, r)
			want := func(when string, full, partial int32) {
				t.Helper()
				synctest.Wait()
				if f, p := b.full.Load(), b.partial.Load(); f != full || p != partial {
					t.Errorf("interval %v, %s: got %d full and %d other Applies, want %d and %d", interval, when, f, p, full, partial)
				}
			}
			want("at first", 1, 0)
			time.Sleep(time.Second)
			for i := range int32(5) {
				b.drift()
				time.Sleep(driftDelay)
				want("drift", 2+i, i)
				time.Sleep(time.Second)
				want("drift that was repaired", 2+i, i)
				tr.UpdateService(apiService("web", fmt.Sprintf("10.96.0.%d", 1+i)))
				want("a change", 2+i, 1+i)
			}
			stop()
			if b.waiting.Load() != 0 {
				t.Error("WaitDrift runs after Run has ended")
			}
		})
	}
}

// Continuous drift does not keep a Runner from applying changes, and its repairs take no
// more than about a tenth of the time.
func TestDriftAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		b := &alert{noticed: make(chan struct{}, 1), takes: 100 * time.Millisecond}
		r := &Runner{Source: tr, Backend: b, ResyncInterval: time.Minute}
		stop := goRun(t, r)
		time.Sleep(time.Second)
		disturb := func(seconds int) (full, partial int32) {
			full, partial = b.full.Load(), b.partial.Load()
			for i := range seconds * 100 {
				time.Sleep(10 * time.Millisecond)
				b.drift()
				if i%100 == 50 {
					tr.UpdateService(apiService("web", fmt.Sprintf("10.96.%d.%d", 1+i/25_500, 1+i/100%255)))
				}
			}
			synctest.Wait()
			return b.full.Load() - full, b.partial.Load() - partial
		}
		if full, _ := disturb(1); full < 5 {
			t.Errorf("in the first second: got %d full Applies of 0.1 s, want one after the other", full)
		}
		if full, partial := disturb(60); full < 80 {
			t.Errorf("then, in a minute: got %d full Applies and %d of changes, want at least 80 full ones, the share of a minute", full, partial)
		}
		if full, partial := disturb(100); full < 95 || full > 105 || partial < 80 {
			t.Errorf("later, in a hundred seconds: got %d full Applies of 0.1 s and %d of a hundred changes, want about 100 and at least 80", full, partial)
		}
		stop()
	})
}

// If the backend cannot wait for drift, resyncs find it.
func TestDriftThatCannotBeWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &watchful{}
		r := &Runner{Source: newTestTracker(), Backend: b, ResyncInterval: time.Second}
		stop := goRun(t, r)
		time.Sleep(2500 * time.Millisecond)
		b.drifted.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		if full, partial := b.full.Load(), b.partial.Load(); full != 2 || partial != 0 {
			t.Errorf("got %d full and %d other Applies, want 2 and 0", full, partial)
		}
		stop()
	})
}

// forgetful is an alert backend whose first calls of WaitDrift fail.
type forgetful struct {
	alert
	fails atomic.Int32
}

func (b *forgetful) Abilities() Abilities {
	return Abilities{Drifted: b.Drifted, WaitDrift: b.WaitDrift}
}

func (b *forgetful) WaitDrift(ctx context.Context) error {
	if b.fails.Add(-1) >= 0 {
		return io.ErrUnexpectedEOF
	}
	return b.alert.WaitDrift(ctx)
}

// After failed calls of WaitDrift, waiting is retried, and drift is repaired at once.
func TestWaitingForDriftIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &forgetful{alert: alert{noticed: make(chan struct{}, 1)}}
		b.fails.Store(3)
		r := &Runner{Source: newTestTracker(), Backend: b, ResyncInterval: time.Hour}
		stop := goRun(t, r)
		watching := func(when string, want bool) {
			t.Helper()
			testenv.Same(t, want, r.Watching(), "%s: watching", when)
		}
		watching("before the first Apply", false)
		time.Sleep(maxRetryInterval)
		watching("after failures", false)
		time.Sleep(2*maxRetryInterval + time.Second)
		watching("after an attempt that waits", true)
		b.drift()
		time.Sleep(time.Second)
		synctest.Wait()
		if full := b.full.Load(); full != 2 {
			t.Errorf("got %d full Applies, want 2: at first, and after the drift", full)
		}
		stop()
		watching("after Run", false)
	})
}

// A continuous stream of changes does not keep a Runner from repairing drift.
func TestDriftAmongChanges(t *testing.T) {
	for _, interval := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			tr := newTestTracker()
			b := &alert{noticed: make(chan struct{}, 1)}
			changes := 0
			r := &Runner{Source: tr, Backend: b, ResyncInterval: interval, MinInterval: 10 * time.Millisecond, Observers: []Observer{{Synced: func(Sync) {
				changes++
				tr.UpdateService(apiService("web", fmt.Sprintf("10.96.%d.%d", 1+changes/250, 1+changes%250)))
			}}}}
			stop := goRun(t, r)
			time.Sleep(time.Second)
			b.drift()
			time.Sleep(time.Second)
			synctest.Wait()
			if full, partial := b.full.Load(), b.partial.Load(); full != 2 || partial < 150 {
				t.Errorf("interval %v: got %d full and %d other Applies, want 2 and one every 10 ms", interval, full, partial)
			}
			stop()
		})
	}
}

// A resync during which another program changes the dataplane verifies nothing.
func TestDriftDuringALookVerifiesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &alert{noticed: make(chan struct{}, 1), takes: time.Second}
		var verified atomic.Int32
		r := &Runner{Source: newTestTracker(), Backend: b, ResyncInterval: time.Minute, Observers: []Observer{{Verified: func(Snapshot) { verified.Add(1) }}}}
		stop := goRun(t, r)
		want := func(when string, looks, times int32) {
			t.Helper()
			synctest.Wait()
			if full, seen := b.full.Load(), verified.Load(); full != looks || seen != times {
				t.Errorf("%s: got %d resyncs and verified %d times, want %d and %d", when, full, seen, looks, times)
			}
		}
		time.Sleep(1500 * time.Millisecond)
		want("at first", 1, 1)
		b.drift()
		for looks := range int32(3) {
			time.Sleep(driftDelay + 500*time.Millisecond)
			b.drift()
			time.Sleep(500 * time.Millisecond)
			want("after a resync with drift during it", 2+looks, 1)
		}
		time.Sleep(driftDelay + time.Second)
		want("after a resync without drift during it", 5, 2)
		stop()
	})
}

// refusing is an alert backend that fails to program one port in each Apply.
type refusing struct{ alert }

func (b *refusing) Apply(ctx context.Context, old, new Snapshot) error {
	_ = b.alert.Apply(ctx, old, new) // it never fails
	return PortErrors{portName("bad"): io.ErrUnexpectedEOF}
}

// A port that fails again and again, with a long time to its next retry, does not delay the
// repair of drift if there is a change right before it.
func TestDriftIsRepairedThoughAPortFails(t *testing.T) {
	for _, interval := range []time.Duration{0, time.Hour, 40 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			tr := newTestTracker()
			tr.UpdateService(apiService("bad", "10.96.0.1"))
			b := &refusing{alert{noticed: make(chan struct{}, 1)}}
			r := &Runner{Source: tr, Backend: b, ResyncInterval: interval}
			stop := goRun(t, r)
			for i := range 10 {
				time.Sleep(77 * time.Second)
				synctest.Wait()
				full := b.full.Load()
				b.drift()
				time.Sleep(driftDelay / 2)
				tr.UpdateService(apiService("web", fmt.Sprintf("10.96.1.%d", 1+i)))
				time.Sleep(driftDelay)
				synctest.Wait()
				if got := b.full.Load() - full; got != 1 {
					t.Errorf("interval %v: right after drift and a change: got %d full Applies, want 1", interval, got)
				}
			}
			stop()
		})
	}
}

// A port that fails again and again does not delay resyncs.
func TestResyncsAreInTimeThoughAPortFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		tr.UpdateService(apiService("bad", "10.96.0.1"))
		b := &refusing{alert{noticed: make(chan struct{}, 1)}}
		var looks []time.Time
		r := &Runner{Source: tr, Backend: b, ResyncInterval: 20 * time.Second, Observers: []Observer{{Synced: func(s Sync) {
			if s.Full {
				looks = append(looks, time.Now())
				b.drifted.Store(true) // for the next resync; WaitDrift does not return for it
			}
		}}}}
		stop := goRun(t, r)
		for i := range 100 {
			time.Sleep(19 * time.Second)
			tr.UpdateService(apiService("web", fmt.Sprintf("10.96.1.%d", 1+i)))
			synctest.Wait()
		}
		stop()
		for i := 1; i < len(looks); i++ {
			if got := looks[i].Sub(looks[i-1]); got > 20*time.Second {
				t.Fatalf("time between two full Applies: got %v, want at most 20 s", got)
			}
		}
	})
}
