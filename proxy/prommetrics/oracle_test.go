package prommetrics

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// witness is a backend that times by itself, from the moment at which a Service
// is changed to the end of the first Apply that holds it.
type witness struct {
	mu    sync.Mutex
	rnd   *rand.Rand
	heard map[string]time.Time // not in any Apply yet
	begun map[string]time.Time // in one that has not worked yet
	count int
	total time.Duration
}

func (w *witness) changed(service string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first(w.heard, service, time.Now())
}

// first notes the time of a Service that has none.
func first(of map[string]time.Time, service string, at time.Time) {
	if of[service].IsZero() {
		of[service] = at
	}
}

func (w *witness) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error {
	w.mu.Lock()
	for service, at := range w.heard {
		first(w.begun, service, at)
	}
	clear(w.heard)
	takes, fails := time.Duration(w.rnd.IntN(1e9)), w.rnd.IntN(3) == 0
	w.mu.Unlock()
	time.Sleep(takes)
	if fails {
		return io.ErrUnexpectedEOF
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.begun {
		w.count++
		w.total += time.Since(at)
	}
	clear(w.begun)
	return nil
}

func (w *witness) Cleanup(context.Context) error { return nil }

// timed gives how many changes of Services the metrics have timed, and how long
// they took together.
func timed(t *testing.T, r *prometheus.Registry) (count uint64, seconds float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			l := m.GetLabel()
			if f.GetName() == "vipkit_change_duration_seconds" && l[0].GetValue() == "Service" && l[1].GetValue() == "total" {
				return m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
			}
		}
	}
	return 0, 0
}

// Whatever is changed and fails, and when, the metrics time it as a witness does.
func TestTimesAreThoseOfAWitness(t *testing.T) {
	rnd := testenv.Random(t)
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			m, registry := newMetrics(t, "")
			tracker := m.Tracker(proxy.NewServiceChangeTracker(proxy.TrackerOptions{}))
			w := &witness{rnd: rand.New(rand.NewPCG(rnd.Uint64(), 0)), heard: map[string]time.Time{}, begun: map[string]time.Time{}}
			runner := &proxy.Runner{Source: tracker, Backend: w, MinInterval: time.Duration(rnd.IntN(2)) * time.Second}
			m.Watch(runner)
			tracker.Synced()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- runner.Run(ctx) }()
			time.Sleep(10 * time.Minute) // The first Apply has worked.
			synctest.Wait()

			for i := range 200 {
				name := string(rune('a' + rnd.IntN(5)))
				w.changed(name)
				tracker.UpdateService(service(name, fmt.Sprintf("10.96.%c.%d", '0'+name[0]-'a', i+1)))
				time.Sleep(time.Duration(1 + rnd.IntN(3e8)))
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if len(w.heard)+len(w.begun) > 0 || w.count == 0 {
				t.Fatalf("the witness has seen %d changes, and %d are left; want some, and none", w.count, len(w.heard)+len(w.begun))
			}
			count, total := timed(t, registry)
			if int(count) != w.count || math.Abs(total-w.total.Seconds()) > 1e-6 {
				t.Errorf("timed are %d changes of together %v s, want %d and %v", count, total, w.count, w.total)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
