package prommetrics

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// holding returns a snapshot of Services.
func holding(names ...string) proxy.Snapshot {
	return proxy.NewSnapshot(&proxy.Node{}, objects.Many(len(names), func(i int) *proxy.ServicePort { return snapshots.Port("ns/"+names[i], "") })...)
}

// counted is what a scrape has after a sync.
type counted struct {
	result        string
	last, refused string // when it was done, and the number of refused service ports
	full, partial string // durations
	failures      [2]string
	repairs       string
}

// Each kind of Sync counts as expected.
func TestAccounts(t *testing.T) {
	at, a, ab := time.Unix(1000, 0), holding("a"), holding("a", "b")
	refused := proxy.PortErrors{{NamespacedName: key("b")}: io.ErrNoProgress, {NamespacedName: key("c")}: io.ErrNoProgress}
	for what, c := range map[string]struct {
		sync proxy.Sync
		want counted
	}{
		"done":              {proxy.Sync{Snapshot: ab, Applied: ab}, counted{"done", "1003", "0", "0", "3", [2]string{"0", "0"}, "0"}},
		"done in full":      {proxy.Sync{Snapshot: ab, Applied: ab, Full: true}, counted{"done", "1003", "0", "3", "0", [2]string{"0", "0"}, "0"}},
		"done in part":      {proxy.Sync{Snapshot: ab, Applied: a, Err: refused, Refused: refused}, counted{"partial", "1003", "2", "0", "3", [2]string{"1", "1"}, "0"}},
		"a part in full":    {proxy.Sync{Snapshot: ab, Applied: a, Err: refused, Refused: refused, Full: true, Operations: 1}, counted{"partial", "1003", "2", "3", "0", [2]string{"1", "0"}, "0"}},
		"failed":            {proxy.Sync{Snapshot: ab, Applied: a, Err: io.ErrUnexpectedEOF}, counted{"failed", "500", "7", "0", "3", [2]string{"1", "1"}, "0"}},
		"nothing applied":   {proxy.Sync{Snapshot: ab, Err: refused}, counted{"failed", "500", "7", "0", "3", [2]string{"1", "1"}, "0"}},
		"repaired":          {proxy.Sync{Snapshot: a, Applied: a, Full: true, Operations: 1}, counted{"done", "1003", "0", "3", "0", [2]string{"0", "0"}, "1"}},
		"no repair":         {proxy.Sync{Snapshot: a, Applied: a, Full: true}, counted{"done", "1003", "0", "3", "0", [2]string{"0", "0"}, "0"}},
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

// samples returns the samples of the sync and of the one before it, which took no time.
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

// The first sync that writes after the dataplane was lost is a repair, also if there is a change.
func TestRepairAfterLoss(t *testing.T) {
	m, r := newMetrics(t, "")
	m.synced(proxy.Sync{Snapshot: holding("a"), Applied: holding("a"), Full: true, Operations: 5})
	wantSamples(t, r, "at first", "repairs", "vipkit_drift_repairs_total 0")
	m.synced(proxy.Sync{Snapshot: holding("a"), Err: proxy.ErrDataplaneLost})
	m.synced(proxy.Sync{Snapshot: holding("b"), Applied: holding("b"), Full: true, Operations: 5})
	wantSamples(t, r, "after a loss", "repairs", "vipkit_drift_repairs_total 1")
	m.synced(proxy.Sync{Snapshot: holding("a"), Applied: holding("a"), Full: true, Operations: 5})
	wantSamples(t, r, "after the repair", "repairs", "vipkit_drift_repairs_total 1")
}

// Verifying the dataplane counts as done, unless the last sync failed.
func TestVerifiedIsDone(t *testing.T) {
	m, r := newMetrics(t, "")
	lastDone := func() string {
		for _, line := range scrape(t, r) {
			if len(line) > 60 && line[:59] == `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family` {
				return line
			}
		}
		return ""
	}
	long := time.Unix(500, 0)
	m.synced(proxy.Sync{Snapshot: holding("a"), Applied: holding("a"), Duration: 1, Start: long})
	before := lastDone()
	m.synced(proxy.Sync{Snapshot: holding("b"), Applied: holding("a"), Duration: 2, Start: long, Err: io.ErrUnexpectedEOF})
	m.verified(holding("a", "b"))
	if got := lastDone(); got != before || before == "" {
		t.Errorf("verified after a failure: got %q, want %q", got, before)
	}
	m.synced(proxy.Sync{Snapshot: holding("a"), Applied: holding("a"), Duration: 3, Start: long})
	before = lastDone()
	m.verified(holding("a"))
	if got := lastDone(); got == before {
		t.Errorf("verified: got %q, want the time", got)
	}
}

// Series whose labels are known exist from the start.
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

// All metrics that are collected were described.
func TestAllMetricsAreDescribed(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m, err := New(r, Options{Mode: "iptables"})
	testenv.NoError(t, err)
	testenv.NoError(t, m.begin(&proxy.Runner{Backend: &nodeFaults{found: []*proxy.Problem{{Field: "a"}}}}))
	m.synced(proxy.Sync{Snapshot: holding("a"), Applied: holding("a")})
	if _, err := r.Gather(); err != nil {
		t.Error(err)
	}
	described := make(chan *prometheus.Desc, 10)
	newSnapshotCounts(m).Describe(described)
	if got := len(described); got != 3 {
		t.Errorf("got %d metrics of objects described, want 3", got)
	}
}

// The buckets of changes are from a quarter of a millisecond to half a minute.
func TestBucketsOfChanges(t *testing.T) {
	m, r := newMetrics(t, "")
	m.observeChange(&change{received: [kinds]time.Time{time.Unix(1, 0)}, taken: time.Unix(1, 0)}, time.Unix(1, 0))
	const want = "histogram kind stage 0.00025 0.0005 0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 32.768 +Inf"
	if got := shapes(scrape(t, r))["vipkit_change_duration_seconds"]; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Clocks may differ, but no duration is negative.
func TestBetween(t *testing.T) {
	testenv.Same(t, 0, between(time.Unix(2, 0), time.Unix(1, 5e8)), "from later to earlier")
	if got := between(time.Unix(1, 0), time.Unix(1, 5e8)); got != 0.5 {
		t.Errorf("got %v, want 0.5", got)
	}
}
