package prommetrics_test

import (
	"errors"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/prommetrics"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// samples scrapes the metrics that match pattern, one sample in each line.
func samples(t *testing.T, r *prometheus.Registry, pattern string) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("scrape: %d %s", w.Code, w.Body)
	}
	var all []string
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") && regexp.MustCompile(pattern).MatchString(line) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return strings.Join(all, "\n")
}

func wantSamples(t *testing.T, r *prometheus.Registry, pattern, want string) {
	t.Helper()
	testenv.Same(t, strings.TrimSpace(want), samples(t, r, pattern), "samples of %s", pattern)
}

func newMetrics(t *testing.T) (*prommetrics.Metrics, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewRegistry()
	m, err := prommetrics.New(r)
	testenv.NoError(t, err)
	return m, r
}

func newPool(t *testing.T, m *prommetrics.Metrics, ranges ...string) *allocator.Pool {
	t.Helper()
	var all []allocator.Config
	for _, text := range ranges {
		text, isDraining := strings.CutSuffix(text, "!")
		c, err := allocator.ParseConfig(text)
		testenv.NoError(t, err)
		c.Draining = isDraining
		all = append(all, c)
	}
	store := allocator.NewMemory(allocator.State{}, nil)
	p, err := allocator.NewPool(store, allocator.PoolOptions{Ranges: all, Observer: m})
	testenv.NoError(t, err)
	m.Watch(p)
	return p
}

func TestAllocations(t *testing.T) {
	m, r := newMetrics(t)
	p := newPool(t, m, "10.96.0.0/28", "10.97.0.0/29!", "fd00::/112", "30000-30009", "30010-30014")
	const ofIPs, ofPorts = "^kube_apiserver_clusterip_allocator_alloc.*total", "^kube_apiserver_nodeport_"
	wantSamples(t, r, ofPorts, `
kube_apiserver_nodeport_allocator_allocated_ports 0
kube_apiserver_nodeport_allocator_allocation_errors_total{scope="dynamic"} 0
kube_apiserver_nodeport_allocator_allocation_errors_total{scope="static"} 0
kube_apiserver_nodeport_allocator_allocation_total{scope="dynamic"} 0
kube_apiserver_nodeport_allocator_allocation_total{scope="static"} 0
kube_apiserver_nodeport_allocator_available_ports 15`)
	address, err := allocator.ParseKey("10.96.0.3")
	testenv.NoError(t, err)
	requests := []allocator.Request{
		{Key: address}, {Kind: allocator.IPv4, Count: 3}, {Kind: allocator.IPv6}, {Kind: allocator.Port, Count: 4}, {Key: allocator.PortKey(30014)},
	}
	// The second request fails, as the address is already allocated.
	for range 2 {
		if _, err := p.Reserve(t.Context(), "web", requests...); err != nil && !errors.Is(err, allocator.ErrAllocated) {
			t.Fatal(err)
		}
	}
	if _, err := p.Reserve(t.Context(), "web", allocator.Request{Kind: 9}); !errors.Is(err, allocator.ErrInvalid) {
		t.Errorf("got error %v, want %v", err, allocator.ErrInvalid)
	}
	wantSamples(t, r, ofIPs, `
kube_apiserver_clusterip_allocator_allocation_errors_total{cidr="10.96.0.0/28",scope="dynamic"} 1
kube_apiserver_clusterip_allocator_allocation_errors_total{cidr="10.96.0.0/28",scope="static"} 1
kube_apiserver_clusterip_allocator_allocation_errors_total{cidr="10.97.0.0/29",scope="dynamic"} 0
kube_apiserver_clusterip_allocator_allocation_errors_total{cidr="10.97.0.0/29",scope="static"} 0
kube_apiserver_clusterip_allocator_allocation_errors_total{cidr="fd00::/112",scope="dynamic"} 1
kube_apiserver_clusterip_allocator_allocation_errors_total{cidr="fd00::/112",scope="static"} 0
kube_apiserver_clusterip_allocator_allocation_total{cidr="10.96.0.0/28",scope="dynamic"} 3
kube_apiserver_clusterip_allocator_allocation_total{cidr="10.96.0.0/28",scope="static"} 1
kube_apiserver_clusterip_allocator_allocation_total{cidr="10.97.0.0/29",scope="dynamic"} 0
kube_apiserver_clusterip_allocator_allocation_total{cidr="10.97.0.0/29",scope="static"} 0
kube_apiserver_clusterip_allocator_allocation_total{cidr="fd00::/112",scope="dynamic"} 1
kube_apiserver_clusterip_allocator_allocation_total{cidr="fd00::/112",scope="static"} 0`)
	wantSamples(t, r, "_ips|duration_seconds_count", `
kube_apiserver_clusterip_allocator_allocated_ips{cidr="10.96.0.0/28"} 4
kube_apiserver_clusterip_allocator_allocated_ips{cidr="10.97.0.0/29"} 0
kube_apiserver_clusterip_allocator_allocated_ips{cidr="fd00::/112"} 1
kube_apiserver_clusterip_allocator_allocation_duration_seconds_count{cidr="10.96.0.0/28"} 2
kube_apiserver_clusterip_allocator_allocation_duration_seconds_count{cidr="fd00::/112"} 1
kube_apiserver_clusterip_allocator_available_ips{cidr="10.96.0.0/28"} 10
kube_apiserver_clusterip_allocator_available_ips{cidr="10.97.0.0/29"} 0
kube_apiserver_clusterip_allocator_available_ips{cidr="fd00::/112"} 65534`)
	wantSamples(t, r, ofPorts, `
kube_apiserver_nodeport_allocator_allocated_ports 5
kube_apiserver_nodeport_allocator_allocation_errors_total{scope="dynamic"} 2
kube_apiserver_nodeport_allocator_allocation_errors_total{scope="static"} 1
kube_apiserver_nodeport_allocator_allocation_total{scope="dynamic"} 4
kube_apiserver_nodeport_allocator_allocation_total{scope="static"} 1
kube_apiserver_nodeport_allocator_available_ports 10`)
}

func TestRepairs(t *testing.T) {
	m, r := newMetrics(t)
	ip, err := allocator.ParseKey("10.96.0.1")
	testenv.NoError(t, err)
	port := allocator.PortKey(30000)
	m.Repaired([]repair.Finding{
		{Problem: repair.Missing, Key: ip, Mended: true},
		{Problem: repair.WrongOwner, Key: ip, Mended: true},
		{Problem: repair.WrongOwner, Key: ip},
		{Problem: repair.Orphaned, Key: ip, Mended: true},
		{Problem: repair.Orphaned, Key: ip},
		{Problem: repair.Duplicate, Key: port},
		{Problem: repair.OutOfRange, Key: port},
		{Problem: repair.NonCanonical, Key: ip},
		{Problem: repair.Invalid, Text: "10.96.0.300"},
		{Problem: repair.Invalid, Text: "99999"},
	}, nil)
	failed := errors.New("no")
	m.Repaired(nil, failed) // Without a pool it counts for addresses and ports.
	newPool(t, m, "10.96.0.0/24")
	m.Repaired(nil, failed)
	wantSamples(t, r, "_repair_", `
apiserver_clusterip_repair_ip_errors_total{type="invalid"} 1
apiserver_clusterip_repair_ip_errors_total{type="leak"} 1
apiserver_clusterip_repair_ip_errors_total{type="repair"} 2
apiserver_clusterip_repair_reconcile_errors_total 2
apiserver_nodeport_repair_port_errors_total{type="duplicate"} 1
apiserver_nodeport_repair_port_errors_total{type="invalid"} 1
apiserver_nodeport_repair_port_errors_total{type="outOfRange"} 1
apiserver_nodeport_repair_reconcile_errors_total 1`)
}

func TestStore(t *testing.T) {
	m, r := newMetrics(t)
	m.Synced(errors.New("no"))
	wantSamples(t, r, "^vipkit_", "vipkit_allocator_last_sync_timestamp_seconds 0\nvipkit_allocator_store_errors_total 1")
	m.Synced(nil)
	if got := samples(t, r, "last_sync"); strings.HasSuffix(got, " 0") {
		t.Errorf("time of the last sync: got %s, want the current time", got)
	}
}

// TestRegistryStaysClean checks that New registers nothing if it fails.
func TestRegistryStaysClean(t *testing.T) {
	r := prometheus.NewRegistry()
	taken := prometheus.NewGauge(prometheus.GaugeOpts{Name: "vipkit_allocator_last_sync_timestamp_seconds", Help: "When the whole store was last read."})
	testenv.NoError(t, r.Register(taken))
	if _, err := prommetrics.New(r); err == nil {
		t.Fatal("New with a registered name: got no error, want one")
	}
	r.Unregister(taken)
	if _, err := prommetrics.New(r); err != nil {
		t.Errorf("New after the name was unregistered: %v", err)
	}
}
