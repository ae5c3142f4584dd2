package prommetrics

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestSyncs(t *testing.T) {
	inBubble(t, "iptables", func(t *testing.T, n *node) {
		start := float64(time.Now().Unix())
		if start != 946684920 {
			t.Fatalf("got start %v, want two minutes after that of the bubble", start) // Times below count from it.
		}
		const counts = "^vipkit_.*(syncs|commits|operations|repairs|verified|ports)|^kubeproxy_.*(_count|last|failures)"
		wantSamples(t, n.Registry, "after the first sync", counts,
			`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
			`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
			`kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv4"} 0`,
			`kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv6"} 0`,
			`kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"} 0`,
			`kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv6"} 0`,
			`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 9.4668486e+08`,
			`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 9.4668486e+08`,
			`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 9.46684861e+08`,
			`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 9.46684861e+08`,
			`vipkit_commits_total 1`,
			`vipkit_drift_repairs_total 0`,
			`vipkit_kernel_operations_total 2`,
			`vipkit_last_verified_timestamp_seconds 9.46684861e+08`,
			`vipkit_service_ports 2`,
			`vipkit_syncs_total{result="done"} 1`,
			`vipkit_syncs_total{result="failed"} 0`,
			`vipkit_syncs_total{result="partial"} 0`,
			`vipkit_unprogrammed_service_ports 0`)

		n.backend.set(func(b *backend) { b.err = io.ErrUnexpectedEOF })
		n.UpdateService(service("b", "10.96.0.9"))
		n.settle(5 * time.Second)
		n.metrics.verified(proxy.Snapshot{}) // The dataplane is right, but for an older snapshot.
		wantSamples(t, n.Registry, "during a failure", "_(last|verified).*(IPv4|verified)",
			`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 9.4668492e+08`,
			`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 9.46684861e+08`,
			`vipkit_last_verified_timestamp_seconds 9.46684925e+08`)
		n.backend.set(func(b *backend) { b.err = nil })
		n.settle(time.Minute)
		wantSamples(t, n.Registry, "after a failure", "failures_total.*IPv6",
			`kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv6"} 1`,
			`kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv6"} 1`)
	})
}

// The duration of a sync of both families counts once, with the family of the node's first address.
func TestDurationsCountOnce(t *testing.T) {
	for first, family := range map[string]v1.IPFamily{"192.0.2.1": v1.IPv4Protocol, "2001:db8::1": v1.IPv6Protocol, "": v1.IPv4Protocol} {
		n := &proxy.Node{}
		if first != "" {
			n.Addresses = []netip.Addr{netip.MustParseAddr(first), netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("192.0.2.2")}
		}
		m, r := newMetrics(t, "nftables")
		for _, full := range []bool{true, false, false} {
			m.synced(proxy.Sync{Snapshot: proxy.NewSnapshot(n), Full: full, Duration: 2 * time.Second})
		}
		of := fmt.Sprintf("{ip_family=%q} ", family)
		wantSamples(t, r, "first address "+first, "proxy_rules_duration_seconds_(sum|count)",
			"kubeproxy_sync_full_proxy_rules_duration_seconds_sum"+of+"2", "kubeproxy_sync_full_proxy_rules_duration_seconds_count"+of+"1",
			"kubeproxy_sync_partial_proxy_rules_duration_seconds_sum"+of+"4", "kubeproxy_sync_partial_proxy_rules_duration_seconds_count"+of+"2",
			"kubeproxy_sync_proxy_rules_duration_seconds_sum"+of+"6", "kubeproxy_sync_proxy_rules_duration_seconds_count"+of+"3")
	}
}

// A full sync that writes although nothing has changed repairs drift.
func TestDriftRepairs(t *testing.T) {
	inBubble(t, "", func(t *testing.T, n *node) {
		const pattern = "repairs|commits"
		n.settle(time.Hour)
		wantSamples(t, n.Registry, "a quiet resync", pattern, "vipkit_commits_total 1", "vipkit_drift_repairs_total 0")

		n.backend.set(func(b *backend) { b.drift = 3 })
		n.settle(time.Hour)
		wantSamples(t, n.Registry, "a resync that repairs", pattern, "vipkit_commits_total 2", "vipkit_drift_repairs_total 1")

		n.UpdateService(service("a", "10.96.0.9"))
		n.settle(time.Minute)
		wantSamples(t, n.Registry, "a change", pattern, "vipkit_commits_total 3", "vipkit_drift_repairs_total 1")

		n.backend.set(func(b *backend) { b.err, b.drift = proxy.ErrDataplaneLost, 3 })
		n.UpdateService(service("a", "10.96.0.8"))
		n.settle(2 * time.Second)
		n.backend.set(func(b *backend) { b.err = nil })
		n.settle(time.Minute)
		wantSamples(t, n.Registry, "a lost dataplane", pattern, "vipkit_commits_total 5", "vipkit_drift_repairs_total 2")
	})
}

func TestAnswers(t *testing.T) {
	m, r := newMetrics(t, "")
	m.HealthAnswered("/healthz", 503)
	m.HealthAnswered("/livez", 200)
	m.HealthAnswered("/livez", 200)
	m.HealthAnswered("/anything", 200)
	m.ConntrackCleaned(v1.IPv6Protocol, 2*time.Second, 5)
	m.ConntrackCleaned(v1.IPv6Protocol, time.Second, 2)
	wantSamples(t, r, "answers", "z_total|conntrack.*(total|count|sum)",
		`kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 0`,
		`kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 7`,
		`kubeproxy_conntrack_reconciler_sync_duration_seconds_sum{ip_family="IPv6"} 3`,
		`kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv6"} 2`,
		`kubeproxy_proxy_healthz_total{code="200"} 0`,
		`kubeproxy_proxy_healthz_total{code="503"} 1`,
		`kubeproxy_proxy_livez_total{code="200"} 2`,
		`kubeproxy_proxy_livez_total{code="503"} 0`)
}

// Two proxies of one process need two registries; a failed New registers nothing.
func TestRegisteredTwice(t *testing.T) {
	_, r := newMetrics(t, "nftables")
	before := scrape(t, r)
	m, err := New(r, Options{Mode: "iptables"})
	if m != nil || !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		t.Errorf("got %v and error %v, want an AlreadyRegisteredError", m, err)
	}
	if diff := cmp.Diff(before, scrape(t, r)); diff != "" {
		t.Errorf("metrics (-before +after):\n%s", diff)
	}

	r = prometheus.NewRegistry()
	last := prometheus.NewGauge(prometheus.GaugeOpts{Name: "vipkit_unprogrammed_service_ports"})
	testenv.NoError(t, r.Register(last))
	if _, err := New(r, Options{}); err == nil {
		t.Error("got no error, want one: a name is registered already")
	}
	wantSamples(t, r, "after the failure", "", "vipkit_unprogrammed_service_ports 0")
}

func TestObjects(t *testing.T) {
	inBubble(t, "", func(t *testing.T, n *node) {
		bad := service("c", "10.96.0.5")
		bad.Spec.ExternalIPs = []string{"nonsense", "192.0.2.1"}
		n.UpdateService(bad)
		n.settle(time.Minute)
		wantSamples(t, n.Registry, "a bad address", "vipkit_service_ports|problems",
			`vipkit_object_problems{kind="EndpointSlice"} 0`,
			`vipkit_object_problems{kind="Node"} 0`,
			`vipkit_object_problems{kind="Service"} 1`,
			"vipkit_service_ports 3")
	})
}

// Settings of the node are checked at each scrape, once there is a snapshot.
func TestNodeProblems(t *testing.T) {
	m, r := newMetrics(t, "")
	b := &nodeFaults{}
	testenv.NoError(t, m.begin(&proxy.Runner{Backend: b}))
	b.found = []*proxy.Problem{{Field: "a"}, {Field: "b"}, {Field: "b"}}
	wantSamples(t, r, "without a snapshot", "vipkit_node_problems")
	m.synced(proxy.Sync{Snapshot: proxy.NewSnapshot(&proxy.Node{Name: "node-1"})})
	wantSamples(t, r, "two are wrong", "vipkit_node_problems", `vipkit_node_problems{setting="a"} 1`, `vipkit_node_problems{setting="b"} 2`)
	b.found = nil
	wantSamples(t, r, "all are corrected", "vipkit_node_problems")
}

// nodeFaults is a backend that finds problems of its node.
type nodeFaults struct {
	backend
	found []*proxy.Problem
}

func (b *nodeFaults) Abilities() proxy.Abilities {
	return proxy.Abilities{CheckNode: func(proxy.Snapshot) []*proxy.Problem { return b.found }}
}

// After random changes, the number of ports without local endpoints equals that of a recount.
func TestNoLocalEndpoints(t *testing.T) {
	rnd := testenv.Random(t)
	m, r := newMetrics(t, "")
	for step := range 100 {
		want := [2][2]int{}
		var ports []*proxy.ServicePort
		for i := range rnd.IntN(20) {
			p := &proxy.ServicePort{
				Name:          proxy.ServicePortName{NamespacedName: key(strconv.Itoa(i)), Family: ipaddr.Families()[rnd.IntN(2)]},
				InternalLocal: rnd.IntN(2) == 0, ExternalLocal: rnd.IntN(2) == 0, HasEndpoints: rnd.IntN(3) > 0,
				Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP}, {Kind: proxy.NodePort}}[:1+rnd.IntN(2)],
			}
			if rnd.IntN(2) == 0 {
				p.Local = []*endpoints.Endpoint{{}}
			}
			family := slices.Index([]v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, p.Name.Family)
			if p.HasEndpoints && p.Local == nil {
				if p.InternalLocal {
					want[0][family]++
				}
				if p.ExternalLocal && len(p.Frontends) == 2 {
					want[1][family]++
				}
			}
			ports = append(ports, p)
		}
		s := proxy.NewSnapshot(nil, ports...)
		m.synced(proxy.Sync{Snapshot: s, Applied: s})
		wantSamples(t, r, fmt.Sprintf("step %d", step), "no_local", noLocal(want)...)
		m.synced(proxy.Sync{Snapshot: proxy.NewSnapshot(nil), Applied: s, Err: io.ErrUnexpectedEOF})
		wantSamples(t, r, fmt.Sprintf("step %d, after a failure", step), "no_local", noLocal(want)...)
		if t.Failed() {
			return
		}
	}
}

func noLocal(n [2][2]int) []string {
	line := func(policy, family string, n int) string {
		return fmt.Sprintf("kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=%q,traffic_policy=%q} %d", family, policy, n)
	}
	return []string{
		line("external", "IPv4", n[1][0]), line("internal", "IPv4", n[0][0]),
		line("external", "IPv6", n[1][1]), line("internal", "IPv6", n[0][1]),
	}
}
