package prommetrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
)

// flows is a proxy.FlowCleaner that returns the error that a test sets.
type flows struct {
	mu  sync.Mutex
	err error
}

func (f *flows) Follow(context.Context, proxy.Snapshot, bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *flows) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *flows) Due() bool { return false }

// history runs a proxy with observers in an order through a history of changes, failures of the
// backend and of the flows, and repairs. It returns all responses and scrapes, and all syncs.
func history(t *testing.T, order [3]int) (seen []string) {
	synctest.Test(t, func(t *testing.T) {
		metrics, registry := newMetrics(t, "nftables")
		tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
		server, err := health.New(health.Options{NodeEligible: tracker.NodeEligible})
		testenv.NoError(t, err)
		var syncs []string
		all := [3]proxy.Observer{metrics.Observer(tracker), server.Observer(), {
			Synced: func(s proxy.Sync) {
				syncs = append(syncs, fmt.Sprint(s.Applied.Len(), s.Full, s.Changed, s.Operations, s.Err))
			},
			Verified: func(s proxy.Snapshot) { syncs = append(syncs, fmt.Sprint("verified ", s.Len())) },
		}}
		b, f := &backend{takes: time.Second}, &flows{}
		runner := &proxy.Runner{Source: tracker, Backend: b, Flows: f, ResyncInterval: time.Minute}
		for _, i := range order {
			runner.Observers = append(runner.Observers, all[i])
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- runner.Run(ctx) }()
		observe := func(after time.Duration) {
			time.Sleep(after)
			synctest.Wait()
			for _, path := range []string{"/healthz", "/livez"} {
				w := httptest.NewRecorder()
				server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
				seen = append(seen, w.Body.String())
			}
			for _, line := range scrape(t, registry) {
				if !strings.HasPrefix(line, "#") {
					seen = append(seen, line)
				}
			}
		}
		tracker.UpdateService(service("a", "10.96.0.1"))
		observe(time.Second)
		tracker.Synced()
		synctest.Wait() // The content of the next Apply must not depend on timing.
		tracker.UpdateNode(objects.Node("node-1", ""))
		observe(500 * time.Millisecond)
		portA := proxy.ServicePortName{NamespacedName: key("a"), Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
		for i, err := range []error{nil, proxy.PortErrors{portA: errors.New("refused")}, proxy.ErrDataplaneLost, errors.New("broken")} {
			b.set(func(b *backend) { b.err, b.drift = err, uint64(i) })
			tracker.UpdateService(service("a", fmt.Sprintf("10.96.0.%d", 2+i)))
			synctest.Wait()
			tracker.UpdateEndpointSlice(slice("a", fmt.Sprintf("10.0.0.%d", 2+i), time.Now()))
			observe(100 * time.Second)
			observe(100 * time.Second)
		}
		b.set(func(b *backend) { b.err = nil })
		f.fail(errors.New("flows stay"))
		observe(200 * time.Second)
		f.fail(nil)
		observe(200 * time.Second)
		seen = append(seen, syncs...)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return seen
}

// Responses and metrics do not depend on the order of observers.
func TestObserversInAnyOrder(t *testing.T) {
	want := history(t, [3]int{0, 1, 2})
	for _, needle := range []string{`"healthy":true`, `"healthy":false`, `"nodeEligible":true`, `vipkit_syncs_total{result="partial"} 0`,
		`vipkit_unprogrammed_service_ports 1`, "flows stay", "verified 1"} {
		if !strings.Contains(strings.Join(want, "\n"), needle) {
			t.Errorf("history: got no %s, want one in which it happens", needle)
		}
	}
	for _, order := range [][3]int{{0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		if diff := cmp.Diff(want, history(t, order)); diff != "" {
			t.Errorf("observers in the order %v: responses and metrics (-first order +this order):\n%.2000s", order, diff)
		}
	}
}
