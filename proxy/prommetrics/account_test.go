package prommetrics

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// holding is a snapshot of Services.
func holding(names ...string) proxy.Snapshot {
	var ports []*proxy.ServicePort
	for _, name := range names {
		ports = append(ports, &proxy.ServicePort{Name: proxy.ServicePortName{NamespacedName: key(name), Family: v1.IPv4Protocol}})
	}
	return proxy.NewSnapshot(&proxy.Node{}, ports...)
}

// counted is what there is to see after a sync.
type counted struct {
	result        string
	last, refused string // when it was done, and service ports that it could not
	full, partial string // durations
	failures      [2]string
	repairs       string
}

// What each kind of account counts for.
func TestAccounts(t *testing.T) {
	at, a, ab := time.Unix(1000, 0), holding("a"), holding("a", "b")
	refused := proxy.PortErrors{{NamespacedName: key("b")}: io.ErrNoProgress, {NamespacedName: key("c")}: io.ErrNoProgress}
	for what, c := range map[string]struct {
		sync proxy.Sync
		want counted
	}{
		"done":              {proxy.Sync{Snapshot: ab, Applied: ab}, counted{"done", "1003", "0", "0", "3", [2]string{"0", "0"}, "0"}},
		"done in full":      {proxy.Sync{Snapshot: ab, Applied: ab, Full: true}, counted{"done", "1003", "0", "3", "0", [2]string{"0", "0"}, "0"}},
		"done in part":      {proxy.Sync{Snapshot: ab, Applied: a, Err: refused}, counted{"partial", "1003", "2", "0", "3", [2]string{"1", "1"}, "0"}},
		"a part in full":    {proxy.Sync{Snapshot: ab, Applied: a, Err: refused, Full: true, Operations: 1}, counted{"partial", "1003", "2", "3", "0", [2]string{"1", "0"}, "0"}},
		"failed":            {proxy.Sync{Snapshot: ab, Applied: a, Err: io.ErrUnexpectedEOF}, counted{"failed", "500", "7", "0", "3", [2]string{"1", "1"}, "0"}},
		"a part of nothing": {proxy.Sync{Snapshot: ab, Err: refused}, counted{"failed", "500", "7", "0", "3", [2]string{"1", "1"}, "0"}},
		"mended":            {proxy.Sync{Snapshot: a, Applied: a, Full: true, Operations: 1}, counted{"done", "1003", "0", "3", "0", [2]string{"0", "0"}, "1"}},
		"nothing to mend":   {proxy.Sync{Snapshot: a, Applied: a, Full: true}, counted{"done", "1003", "0", "3", "0", [2]string{"0", "0"}, "0"}},
		"written, not full": {proxy.Sync{Snapshot: a, Applied: a, Operations: 1}, counted{"done", "1003", "0", "0", "3", [2]string{"0", "0"}, "0"}},
		"changed in full":   {proxy.Sync{Snapshot: ab, Applied: ab, Full: true, Operations: 1}, counted{"done", "1003", "0", "3", "0", [2]string{"0", "0"}, "0"}},
	} {
		m, r := newMetrics(t, "iptables")
		m.synced(proxy.Sync{Snapshot: a, Applied: a, Start: time.Unix(500, 0)})
		m.own.unprogrammed.Set(7)
		c.sync.Start, c.sync.Duration = at, 3*time.Second
		m.synced(c.sync)
		wantSamples(t, r, what, `(syncs_total|unprogrammed|repairs)|(last_timestamp.*|failures.*|_proxy_rules_duration.*sum.*|(full|partial)_proxy_rules_duration.*sum.*)IPv4`,
			c.want.samples()...)
	}
}

// samples are those of the sync and of the one before it, which took no time.
func (c counted) samples() (all []string) {
	const of = `{ip_family="IPv4"} `
	syncs := map[string]int{"done": 1}
	syncs[c.result]++
	if c.full != "0" {
		all = append(all, "kubeproxy_sync_full_proxy_rules_duration_seconds_sum"+of+c.full)
	}
	return append(all,
		"kubeproxy_sync_partial_proxy_rules_duration_seconds_sum"+of+c.partial,
		"kubeproxy_sync_proxy_rules_duration_seconds_sum"+of+"3",
		"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total"+of+c.failures[1],
		"kubeproxy_sync_proxy_rules_iptables_restore_failures_total"+of+c.failures[0],
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds"+of+c.last,
		"vipkit_drift_repairs_total "+c.repairs,
		fmt.Sprintf(`vipkit_syncs_total{result="done"} %d`, syncs["done"]),
		fmt.Sprintf(`vipkit_syncs_total{result="failed"} %d`, syncs["failed"]),
		fmt.Sprintf(`vipkit_syncs_total{result="partial"} %d`, syncs["partial"]),
		"vipkit_unprogrammed_service_ports "+c.refused)
}

// After a dataplane was lost, what is written mends, also if something has changed.
func TestRepairAfterLoss(t *testing.T) {
	m, r := newMetrics(t, "")
	m.synced(proxy.Sync{Snapshot: holding("a"), Applied: holding("a"), Full: true, Operations: 5})
	wantSamples(t, r, "at first", "repairs", "vipkit_drift_repairs_total 0")
	m.synced(proxy.Sync{Snapshot: holding("a"), Err: proxy.ErrDataplaneLost})
	m.synced(proxy.Sync{Snapshot: holding("b"), Applied: holding("b"), Full: true, Operations: 5})
	wantSamples(t, r, "after a loss", "repairs", "vipkit_drift_repairs_total 1")
	m.synced(proxy.Sync{Snapshot: holding("a"), Applied: holding("a"), Full: true, Operations: 5})
	wantSamples(t, r, "and then", "repairs", "vipkit_drift_repairs_total 1")
}

// What was called before goes on being called; what holds is done when it is found right,
// and what has failed is not.
func TestWatchGoesOnCalling(t *testing.T) {
	m, r := newMetrics(t, "")
	var observed []time.Duration
	var verified []uint64
	runner := &proxy.Runner{
		Observe:  func(s proxy.Sync) { observed = append(observed, s.Duration) },
		Verified: func(s proxy.Snapshot) { verified = append(verified, uint64(s.Len())) },
	}
	m.Watch(runner)
	lastDone := func() string {
		for _, line := range scrape(t, r) {
			if len(line) > 60 && line[:59] == `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family` {
				return line
			}
		}
		return ""
	}
	long := time.Unix(500, 0)
	runner.Observe(proxy.Sync{Snapshot: holding("a"), Applied: holding("a"), Duration: 1, Start: long})
	before := lastDone()
	runner.Observe(proxy.Sync{Snapshot: holding("b"), Applied: holding("a"), Duration: 2, Start: long, Err: io.ErrUnexpectedEOF})
	runner.Verified(holding("a", "b"))
	if got := lastDone(); got != before || before == "" {
		t.Errorf("verified after a failure: got %q, want %q", got, before)
	}
	runner.Observe(proxy.Sync{Snapshot: holding("a"), Applied: holding("a"), Duration: 3, Start: long})
	before = lastDone()
	runner.Verified(holding("a"))
	if got := lastDone(); got == before {
		t.Errorf("verified: got %q, want the time", got)
	}
	if diff := cmp.Diff([]time.Duration{1, 2, 3}, observed); diff != "" {
		t.Errorf("syncs that were observed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]uint64{2, 1}, verified); diff != "" {
		t.Errorf("service ports that were verified (-want +got):\n%s", diff)
	}
}

// Series whose labels are known are there from the start.
func TestSeriesFromTheStart(t *testing.T) {
	m, r := newMetrics(t, "nftables")
	wantSamples(t, r, "at the start", "no_local|cleanup", append([]string{
		`kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family="IPv4"} 0`,
		`kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family="IPv6"} 0`,
	}, noLocal([2][2]int{})...)...)
	m.ConntrackCleaned(v1.IPv4Protocol, time.Second, 0)
	m.ConntrackCleaned(v1.IPv4Protocol, time.Second, -3)
	wantSamples(t, r, "no flows", "deleted_entries.*IPv4", `kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 0`)
}

// All metrics are those that were said to come.
func TestNothingUndescribed(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m, err := New(r, Options{Mode: "iptables"})
	if err != nil {
		t.Fatal(err)
	}
	m.Watch(&proxy.Runner{Backend: &choosy{found: []*proxy.Problem{{Field: "a"}}}})
	m.synced(proxy.Sync{Snapshot: holding("a"), Applied: holding("a")})
	if _, err := r.Gather(); err != nil {
		t.Error(err)
	}
	described := make(chan *prometheus.Desc, 10)
	objects{m}.Describe(described)
	if got := len(described); got != 3 {
		t.Errorf("%d metrics of objects are described, want 3", got)
	}
}

// Changes take from a quarter of a millisecond to half a minute.
func TestBucketsOfChanges(t *testing.T) {
	m, r := newMetrics(t, "")
	m.observeChange(&change{heard: [kinds]time.Time{time.Unix(1, 0)}, taken: time.Unix(1, 0)}, time.Unix(1, 0))
	const want = "histogram kind stage 0.00025 0.0005 0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 32.768 +Inf"
	if got := shapes(scrape(t, r))["vipkit_change_duration_seconds"]; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Clocks may disagree, but no time is below nothing.
func TestBetween(t *testing.T) {
	if got := between(time.Unix(2, 0), time.Unix(1, 5e8)); got != 0 {
		t.Errorf("from later to earlier: got %v, want 0", got)
	}
	if got := between(time.Unix(1, 0), time.Unix(1, 5e8)); got != 0.5 {
		t.Errorf("got %v, want 0.5", got)
	}
}

// What pods did before this process began is not timed, and of a Service of two ports
// each change once.
func TestTriggers(t *testing.T) {
	start := time.Now()
	m, _ := newMetrics(t, "")
	m.changes.synced = true
	m.changes.hear(sliceKind, key("a"), trigger{at: start.Add(-time.Hour)}, trigger{at: start.Add(time.Hour)})()
	var ports []*proxy.ServicePort
	for p := range holding("a").All() {
		other := *p
		other.Name.Port = "other"
		ports = append(ports, p, &other)
	}
	m.changes.take(holding(), proxy.NewSnapshot(&proxy.Node{}, ports...), start)
	if c := m.changes.taken[key("a")]; c == nil || len(c.triggers) != 1 || c.triggers[0].at.Before(start) {
		t.Errorf("followed: %+v, want one trigger, after the start", c)
	}
}

// told is a tracker that notes what it is told.
type told struct {
	proxy.ServiceChangeTracker
	what []string
}

func (s *told) UpdateService(o *v1.Service) { s.what = append(s.what, "service "+o.Name) }
func (s *told) DeleteService(name types.NamespacedName) {
	s.what = append(s.what, "no service "+name.Name)
}
func (s *told) Synced() { s.what = append(s.what, "synced") }
func (s *told) UpdateEndpointSlice(o *discoveryv1.EndpointSlice) {
	s.what = append(s.what, "slice "+o.Name)
}

func (s *told) DeleteEndpointSlice(name types.NamespacedName) {
	s.what = append(s.what, "no slice "+name.Name)
}

// All is passed on.
func TestTrackerIsTold(t *testing.T) {
	m, _ := newMetrics(t, "")
	inner := &told{}
	tracker := m.Tracker(inner)
	tracker.UpdateService(service("a", "10.96.0.1"))
	tracker.UpdateEndpointSlice(slice("a", "10.0.0.1", time.Time{}))
	tracker.Synced()
	tracker.DeleteEndpointSlice(key("a-1"))
	tracker.DeleteService(key("a"))
	if diff := cmp.Diff([]string{"service a", "slice a-1", "synced", "no slice a-1", "no service a"}, inner.what); diff != "" {
		t.Errorf("what the tracker was told (-want +got):\n%s", diff)
	}
}

// once is a source that gives something to who waits, and nothing else.
type once struct{}

func (once) Next(ctx context.Context, _ proxy.Snapshot) (proxy.Snapshot, error) {
	return proxy.NewSnapshot(&proxy.Node{Name: "waited"}), ctx.Err()
}

// What was waited for is taken, where there is nothing newer; and as long as there is no
// snapshot, all that was heard is pending.
func TestWaitedForIsTaken(t *testing.T) {
	m, _ := newMetrics(t, "")
	s := &source{inner: once{}, metrics: m}
	m.changes.hear(serviceKind, key("a"))()
	if _, wait, err := s.poll(t.Context(), proxy.Snapshot{}); wait == nil || err != nil || m.changes.pending[serviceKind] != 1 {
		t.Errorf("without a snapshot: error %v, pending %v, want one Service", err, m.changes.pending)
	}
	got, err := s.Next(t.Context(), proxy.Snapshot{})
	if err != nil || got.IsZero() || got.Node().Name != "waited" || m.changes.pending[serviceKind] != 0 {
		t.Errorf("got %v, error %v, pending %v, want what was waited for", got.Node(), err, m.changes.pending)
	}
	m.changes.hear(serviceKind, key("a"))()
	if _, _, err := s.poll(t.Context(), got); err != nil || m.changes.pending[serviceKind] != 0 {
		t.Errorf("where nothing came of it: error %v, pending %v, want none", err, m.changes.pending)
	}
}
