package prommetrics

import (
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// manyServices observes a number of Services, each with a problem, a change that reaches the
// kernel, and one that the kernel refuses.
func manyServices(t *testing.T, count int) *prometheus.Registry {
	t.Helper()
	m, r := newMetrics(t, "nftables")
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
	testenv.NoError(t, m.begin(&proxy.Runner{Source: tracker, Backend: &backend{}}))
	change := func(version int) {
		for i := range count {
			s := service(fmt.Sprintf("s%d", i), fmt.Sprintf("10.%d.%d.%d", 96+version, i/200, 1+i%200))
			s.Spec.ExternalIPs = []string{"nonsense"}
			tracker.UpdateService(s)
			tracker.UpdateEndpointSlice(slice(s.Name, "10.1.0.1", time.Now()))
		}
	}
	change(0)
	tracker.Synced()
	var last proxy.Snapshot
	for version := range 3 {
		s := snapshots.Next(t, tracker, last)
		failed := proxy.PortErrors{}
		if version == 2 {
			for p := range s.All() {
				failed[p.Name] = fmt.Errorf("the kernel refuses %s", p.Name)
			}
		}
		account := proxy.Sync{Snapshot: s, Applied: s, Start: time.Now(), Operations: 4}
		if len(failed) > 0 {
			account.Applied, account.Err, account.Refused = last, failed, failed
		}
		m.started(account)
		m.synced(account)
		last = s
		change(version + 1)
	}
	m.HealthAnswered("/healthz", 200)
	return r
}

// TestManyServices: neither the number of series nor the cost of a scrape grows with the
// number of Services, and no label has their names.
func TestManyServices(t *testing.T) {
	few, many := manyServices(t, 10), manyServices(t, 2000)
	if got, want := len(scrape(t, many)), len(scrape(t, few)); got != want {
		t.Errorf("got %d lines with 2,000 Services and %d with 10, want as many", got, want)
	}
	if text := strings.Join(scrape(t, many), "\n"); strings.Contains(text, "s77") || strings.Contains(text, "refuses") {
		t.Errorf("got names of Services, or texts of errors, in labels, want none:\n%s", text)
	}
	cost := func(r *prometheus.Registry) float64 {
		h := promhttp.HandlerFor(r, promhttp.HandlerOpts{})
		return testing.AllocsPerRun(5, func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil)) })
	}
	small, large := cost(few), cost(many)
	begin := time.Now()
	scrape(t, many)
	t.Logf("a scrape takes %v allocations with 10 Services, %v with 2,000, and then %v", small, large, time.Since(begin))
	if large > 1.1*small {
		t.Errorf("got %v allocations for a scrape with 2,000 Services and %v with 10, want as many", large, small)
	}
}

// The number of limits is that of the last sync that did not fail.
func TestLimits(t *testing.T) {
	m, r := newMetrics(t, "iptables")
	two := []*proxy.Problem{{Kind: "Service", Err: errors.New("a")}, {Kind: "Service", Err: errors.New("b")}}
	held := proxy.NewSnapshot(&proxy.Node{})
	for _, step := range []struct {
		what string
		sync proxy.Sync
		want string
	}{
		{"without limits", proxy.Sync{Snapshot: held, Applied: held}, "0"},
		{"with two", proxy.Sync{Snapshot: held, Applied: held, Limits: two}, "2"},
		{"after a failure", proxy.Sync{Snapshot: held, Err: io.ErrUnexpectedEOF}, "2"},
		{"with one", proxy.Sync{Snapshot: held, Applied: held, Limits: two[1:]}, "1"},
	} {
		m.synced(step.sync)
		wantSamples(t, r, step.what, "^vipkit_service_port_limits", "vipkit_service_port_limits "+step.want)
	}
}
