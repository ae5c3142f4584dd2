package e2e_test

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scrape returns the type and the names of the labels of each metric that the proxy of a node has, by name.
func (n *node) scrape(t *testing.T) map[string]string {
	t.Helper()
	var all map[string]*dto.MetricFamily
	eventually(t, n.name+" has metrics", func() error {
		status, body, err := get(n.ns, "http://127.0.0.1:10249/metrics")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("got status %d: %s", status, body)
		}
		if err == nil {
			parser := expfmt.NewTextParser(model.UTF8Validation)
			all, err = parser.TextToMetricFamilies(strings.NewReader(body))
		}
		return err
	})
	described := map[string]string{}
	for name, family := range all {
		labels := map[string]bool{}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		described[name] = fmt.Sprint(strings.ToLower(family.GetType().String()), slices.Sorted(maps.Keys(labels)))
	}
	return described
}

// wantMetrics checks that dashboards and alerts find what kube-proxy had, except what the packages prommetrics
// and kubeproxy name. They do not use those of the libraries of an API server, nor all of Go.
func (n *node) wantMetrics(t *testing.T, kubeProxy map[string]string) {
	t.Helper()
	used := regexp.MustCompile("^(kubeproxy|rest_client|process|kubernetes|go_goroutines|go_threads|go_info|go_memstats)_?")
	documented := []string{"kubeproxy_iptables_ct_state_invalid_dropped_packets_total", "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
		"kubernetes_build_info"}
	got, compared := n.scrape(t), 0
	for _, name := range slices.Sorted(maps.Keys(kubeProxy)) {
		if !used.MatchString(name) || slices.Contains(documented, name) {
			continue
		}
		compared++
		if want := kubeProxy[name]; got[name] != want {
			t.Errorf("%s, mode %s: metric %s: got %q, want that of kube-proxy, %q", n.name, n.mode, name, got[name], want)
		}
	}
	if compared < 50 {
		t.Errorf("%s: got %d metrics to compare, want at least 50", n.name, compared)
	}
	t.Logf("%s, mode %s: %d metrics of kube-proxy compared", n.name, n.mode, compared)
}
