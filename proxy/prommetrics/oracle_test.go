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

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// oracle is a backend that measures changes itself, from the change of a Service to the end of
// the first Apply with it that succeeds.
type oracle struct {
	proxy.NoAbilities
	mu       sync.Mutex
	rnd      *rand.Rand
	received map[string]time.Time // not in any Apply yet
	begun    map[string]time.Time // in one that has not succeeded yet
	count    int
	total    time.Duration
}

func (w *oracle) changed(service string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first(w.received, service, time.Now())
}

// first sets the time of a Service that has none.
func first(of map[string]time.Time, service string, at time.Time) {
	if of[service].IsZero() {
		of[service] = at
	}
}

func (w *oracle) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error {
	w.mu.Lock()
	for service, at := range w.received {
		first(w.begun, service, at)
	}
	clear(w.received)
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

func (w *oracle) Cleanup(context.Context) error { return nil }

// timed returns the number of changes of Services in the metrics, and the sum of their durations.
func timed(t *testing.T, r *prometheus.Registry) (count uint64, seconds float64) {
	t.Helper()
	families, err := r.Gather()
	testenv.NoError(t, err)
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

// With random changes and failures, the metrics have the same durations as the oracle.
func TestTimesEqualThoseOfAnOracle(t *testing.T) {
	rnd := testenv.Random(t)
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			m, registry := newMetrics(t, "")
			tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
			w := &oracle{rnd: rand.New(rand.NewPCG(rnd.Uint64(), 0)), received: map[string]time.Time{}, begun: map[string]time.Time{}}
			runner := &proxy.Runner{Source: tracker, Backend: w, MinInterval: time.Duration(rnd.IntN(2)) * time.Second, Observers: []proxy.Observer{m.Observer(tracker)}}
			tracker.Synced()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- runner.Run(ctx) }()
			time.Sleep(10 * time.Minute) // The first Apply has succeeded.
			synctest.Wait()

			for i := range 200 {
				name := string(rune('a' + rnd.IntN(5)))
				w.changed(name)
				tracker.UpdateService(service(name, fmt.Sprintf("10.96.%c.%d", '0'+name[0]-'a', i+1)))
				time.Sleep(time.Duration(1 + rnd.IntN(3e8)))
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if len(w.received)+len(w.begun) > 0 || w.count == 0 {
				t.Fatalf("oracle: got %d changes and %d left, want some and none left", w.count, len(w.received)+len(w.begun))
			}
			count, total := timed(t, registry)
			if int(count) != w.count || math.Abs(total-w.total.Seconds()) > 1e-6 {
				t.Errorf("got %d changes and a sum of %v s, want %d and %v", count, total, w.count, w.total)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
