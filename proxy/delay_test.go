package proxy

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

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
