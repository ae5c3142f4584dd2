package prommetrics

import (
	"context"
	"fmt"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// scrape returns the lines that Prometheus reads.
func scrape(t *testing.T, r *prometheus.Registry) []string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("scrape: %d %s", w.Code, w.Body)
	}
	return strings.Split(strings.TrimSuffix(w.Body.String(), "\n"), "\n")
}

// wantSamples checks all samples whose line matches a pattern.
func wantSamples(t *testing.T, r *prometheus.Registry, why, pattern string, want ...string) {
	t.Helper()
	var got []string
	for _, line := range scrape(t, r) {
		if !strings.HasPrefix(line, "#") && regexp.MustCompile(pattern).MatchString(line) {
			got = append(got, line)
		}
	}
	testenv.Same(t, want, got, "%s: samples of %s", why, pattern)
}

func newMetrics(t *testing.T, mode string) (*Metrics, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewRegistry()
	m, err := New(r, Options{Mode: mode})
	testenv.NoError(t, err)
	return m, r
}

// backend needs some time for an Apply, and returns an error that a test sets.
type backend struct {
	proxy.NoAbilities
	mu    sync.Mutex
	takes time.Duration
	err   error
	ops   uint64
	last  proxy.Snapshot
	// drift is the number of operations that the next repair needs.
	drift uint64
}

func (b *backend) Apply(_ context.Context, old, new proxy.Snapshot) error {
	b.mu.Lock()
	takes := b.takes
	b.mu.Unlock()
	time.Sleep(takes)
	b.mu.Lock()
	defer b.mu.Unlock()
	for range new.Changes(b.last) {
		b.ops++
	}
	b.last = new
	if old.IsZero() {
		b.ops += b.drift
		b.drift = 0
	}
	return b.err
}

func (b *backend) Cleanup(context.Context) error { return nil }

func (b *backend) Abilities() proxy.Abilities {
	return proxy.Abilities{Operations: func() uint64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.ops
	}}
}

func (b *backend) set(change func(*backend)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

// node is a proxy that runs in a bubble of synctest.
type node struct {
	*proxy.ServiceChangeTracker
	*prometheus.Registry
	metrics *Metrics
	backend *backend
}

func (n *node) settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// inBubble runs a proxy with the Services a and b.
func inBubble(t *testing.T, mode string, test func(*testing.T, *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &node{backend: &backend{takes: time.Second}}
		n.metrics, n.Registry = newMetrics(t, mode)
		n.ServiceChangeTracker = proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
		runner := &proxy.Runner{
			Source: n.ServiceChangeTracker, Backend: n.backend, ResyncInterval: time.Hour, RetryInterval: 10 * time.Second,
			Observers: []proxy.Observer{n.metrics.Observer(n.ServiceChangeTracker)},
		}
		n.UpdateService(service("a", "10.96.0.1"))
		n.UpdateService(service("b", "10.96.0.2"))
		time.Sleep(time.Minute)
		n.Synced()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- runner.Run(ctx) }()
		n.settle(time.Minute)
		test(t, n)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func service(name, address string) *v1.Service {
	return objects.Service("ns/"+name, address, objects.Ports("80"))
}

// slice returns an EndpointSlice with one endpoint and the trigger time of its change.
func slice(of, address string, changed time.Time) *discoveryv1.EndpointSlice {
	s := objects.Slice("ns/"+of+"-1", of, address)
	if s.Ports = objects.SlicePorts("8080"); !changed.IsZero() {
		s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: changed.Format(time.RFC3339Nano)}
	}
	return s
}

// stages returns the samples of changes of a kind: their number, and the sum of their durations.
func stages(kind string, count int, seconds ...string) []string {
	var out []string
	for i, stage := range []string{"apply", "notice", "queue", "total"} {
		if seconds[i] == "" {
			continue
		}
		labels := fmt.Sprintf(`{kind=%q,stage=%q}`, kind, stage)
		out = append(out, "vipkit_change_duration_seconds_sum"+labels+" "+seconds[i],
			fmt.Sprintf("vipkit_change_duration_seconds_count%s %d", labels, count))
	}
	return out
}

const stagePattern = "^vipkit_change_duration_seconds_(sum|count)"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
