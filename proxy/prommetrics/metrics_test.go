package prommetrics

import (
	"context"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

type failing struct{}

func (failing) Next(ctx context.Context, _ proxy.Snapshot) (proxy.Snapshot, error) {
	if ctx.Err() != nil {
		return proxy.Snapshot{}, ctx.Err()
	}
	return proxy.Snapshot{}, io.ErrUnexpectedEOF
}

// shapes returns for each metric its type, its labels, and its bucket bounds.
func shapes(lines []string) map[string]string {
	out := map[string]string{}
	sample := regexp.MustCompile(`^([a-z_]+?)(_bucket|_sum|_count)?(?:\{(.*)\})? `)
	label := regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	var name string
	for _, line := range lines {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			var kind string
			name, kind, _ = strings.Cut(rest, " ")
			out[name] = kind
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for _, l := range label.FindAllStringSubmatch(m[3], -1) {
			word := " " + l[1]
			if l[1] == "le" {
				word = " " + l[2]
			}
			if !slices.Contains(strings.Fields(out[name]), word[1:]) {
				out[name] += word
			}
		}
	}
	return out
}

// The names, types, labels and buckets are those that dashboards for kube-proxy use.
func TestShapesOfKubeProxy(t *testing.T) {
	const exponential = " 0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 +Inf"
	const programming = " 0.25 0.5 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40" +
		" 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 65 70 75 80 85 90 95 100 105 110 115 120 150 180 210 240 270 300 +Inf"
	common := map[string]string{
		"sync_proxy_rules_duration_seconds":                        "histogram ip_family" + exponential,
		"sync_full_proxy_rules_duration_seconds":                   "histogram ip_family" + exponential,
		"sync_partial_proxy_rules_duration_seconds":                "histogram ip_family" + exponential,
		"conntrack_reconciler_sync_duration_seconds":               "histogram ip_family" + exponential,
		"network_programming_duration_seconds":                     "histogram ip_family" + programming,
		"sync_proxy_rules_last_timestamp_seconds":                  "gauge ip_family",
		"sync_proxy_rules_last_queued_timestamp_seconds":           "gauge ip_family",
		"sync_proxy_rules_endpoint_changes_pending":                "gauge",
		"sync_proxy_rules_endpoint_changes_total":                  "counter",
		"sync_proxy_rules_service_changes_pending":                 "gauge",
		"sync_proxy_rules_service_changes_total":                   "counter",
		"sync_proxy_rules_no_local_endpoints_total":                "gauge ip_family traffic_policy",
		"proxy_healthz_total":                                      "counter code",
		"proxy_livez_total":                                        "counter code",
		"conntrack_reconciler_deleted_entries_total":               "counter ip_family",
		"sync_proxy_rules_nftables_sync_failures_total":            "nftables",
		"sync_proxy_rules_nftables_cleanup_failures_total":         "nftables",
		"sync_proxy_rules_iptables_restore_failures_total":         "iptables ipvs",
		"sync_proxy_rules_iptables_partial_restore_failures_total": "iptables",
	}
	for _, mode := range []string{"", "nftables", "iptables", "ipvs"} {
		inBubble(t, mode, func(t *testing.T, n *node) {
			n.UpdateEndpointSlice(slice("a", "10.0.0.1", time.Now()))
			n.settle(time.Minute)
			n.metrics.ConntrackCleaned(v1.IPv4Protocol, time.Millisecond, 7)
			want := map[string]string{}
			for name, shape := range common {
				if strings.Contains(name, "tables_") {
					if mode == "" || !slices.Contains(strings.Fields(shape), mode) {
						continue
					}
					shape = "counter ip_family"
				}
				want["kubeproxy_"+name] = shape
			}
			got := shapes(scrape(t, n.Registry))
			for name := range got {
				if strings.HasPrefix(name, "vipkit_") {
					delete(got, name)
				}
			}
			testenv.Same(t, want, got, "mode %q: metrics", mode)
		})
	}
}

// Each metric says what it is.
func TestHelp(t *testing.T) {
	inBubble(t, "iptables", func(t *testing.T, n *node) {
		n.settle(time.Minute)
		all, err := n.Gather()
		if err != nil || len(all) < 20 {
			t.Fatalf("%d metrics, error %v", len(all), err)
		}
		for _, m := range all {
			if len(m.GetHelp()) < 10 {
				t.Errorf("%s: its help is %q", m.GetName(), m.GetHelp())
			}
		}
	})
}

// A mode that does not exist is an error, since the metrics of the intended one would be missing.
func TestUnknownMode(t *testing.T) {
	_, err := New(prometheus.NewRegistry(), Options{Mode: "nftable"})
	const want = `proxy metrics: Options.Mode is "nftable", and must be one of ["" "nftables" "iptables" "ipvs" "userspace" "kernelspace"]`
	if err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}

// ruling is a backend that writes rules of iptables.
type ruling struct{ backend }

func (*ruling) Abilities() proxy.Abilities {
	return proxy.Abilities{CountRules: func() []proxy.RuleCount {
		return []proxy.RuleCount{{Family: v1.IPv4Protocol, Table: "nat", Existing: 10, Written: 2}, {Family: v1.IPv6Protocol, Table: "filter", Existing: 5}}
	}}
}

// Rules are counted in mode iptables, as in kube-proxy, and not in other modes whose backends write some, too.
func TestRulesOfIPTables(t *testing.T) {
	const total, last = "kubeproxy_sync_proxy_rules_iptables_total", "kubeproxy_sync_proxy_rules_iptables_last"
	for mode, want := range map[string][]string{
		"iptables": {
			last + `{ip_family="IPv4",table="nat"} 2`, last + `{ip_family="IPv6",table="filter"} 0`,
			total + `{ip_family="IPv4",table="nat"} 10`, total + `{ip_family="IPv6",table="filter"} 5`,
		},
		"ipvs": nil,
	} {
		m, r := newMetrics(t, mode)
		for _, b := range []proxy.Backend{&backend{}, &ruling{}} {
			testenv.NoError(t, m.begin(&proxy.Runner{Backend: b}))
			if _, can := b.(*ruling); !can {
				wantSamples(t, r, "a backend without rules", "^("+total+"|"+last+")$")
			}
		}
		wantSamples(t, r, "mode "+mode, "^("+total+"|"+last+")", want...)
	}
}
