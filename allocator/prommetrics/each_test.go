package prommetrics_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/prommetrics"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestKindsOfPools checks that a failed pass counts for the kinds of ranges that the pool
// has, and that metrics of ports exist only if it has ports.
func TestKindsOfPools(t *testing.T) {
	for _, c := range []struct {
		ranges     []string
		ips, ports int
	}{
		{[]string{"10.96.0.0/24"}, 1, 0}, {[]string{"30000-30009"}, 0, 1},
		{[]string{"10.96.0.0/24", "30000-30009"}, 1, 1}, {[]string{"30000-30009", "10.96.0.0/24"}, 1, 1},
		{[]string{"10.96.0.0/24", "fd00::/112"}, 1, 0}, {[]string{"30000-30009", "31000-31009"}, 0, 1}, {[]string{"10.0.0.10-10.0.0.20"}, 1, 0},
	} {
		m, r := newMetrics(t)
		newPool(t, m, c.ranges...)
		m.Repaired(nil, errors.New("no"))
		wantSamples(t, r, "reconcile_errors", fmt.Sprintf("apiserver_clusterip_repair_reconcile_errors_total %d\napiserver_nodeport_repair_reconcile_errors_total %d", c.ips, c.ports))
		if got := samples(t, r, "allocated_ports"); (got != "") != (c.ports > 0) {
			t.Errorf("%v: samples of ports: got %q, want some: %t", c.ranges, got, c.ports > 0)
		}
	}
}

// TestUnusualAllocations has invalid requests, which count nowhere, and one of a known
// duration.
func TestUnusualAllocations(t *testing.T) {
	m, r := newMetrics(t)
	m.Allocated(allocator.Allocation{Err: allocator.ErrInvalid, Range: "10.96.0.0/24"})
	m.Allocated(allocator.Allocation{Kind: allocator.Port + 1, Err: allocator.ErrInvalid})
	wantSamples(t, r, "allocation_(errors_)?total", "")
	m.Allocated(allocator.Allocation{Kind: allocator.IPv4, Range: "10.96.0.0/24", Count: 1, Took: 2 * time.Second})
	wantSamples(t, r, "duration_seconds_sum", `kube_apiserver_clusterip_allocator_allocation_duration_seconds_sum{cidr="10.96.0.0/24"} 2`)
}

// TestNumbersCountAsPorts checks that an invalid number counts as a port, even if it is
// far too large.
func TestNumbersCountAsPorts(t *testing.T) {
	m, r := newMetrics(t)
	m.Repaired([]repair.Finding{{Problem: repair.Invalid, Text: "99999999999999999999999"}, {Problem: repair.Invalid, Text: "web"}}, nil)
	wantSamples(t, r, "_errors_total.type", "apiserver_clusterip_repair_ip_errors_total{type=\"invalid\"} 1\napiserver_nodeport_repair_port_errors_total{type=\"invalid\"} 1")
}

// TestDescriptions checks that Describe sends the description of every metric, which the
// pedantic registry compares, and that each metric has a help text of its own.
func TestDescriptions(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m, err := prommetrics.New(r)
	testenv.NoError(t, err)
	newPool(t, m, "10.96.0.0/24", "30000-30009")
	m.Allocated(allocator.Allocation{Kind: allocator.IPv4, Range: "10.96.0.0/24", Count: 1})
	m.Repaired([]repair.Finding{{Problem: repair.Invalid, Text: "web"}, {Problem: repair.Invalid, Text: "1"}}, errors.New("no"))
	all, err := r.Gather()
	testenv.NoError(t, err)
	helps := map[string]int{}
	for _, f := range all {
		if len(f.GetHelp()) < 10 {
			t.Errorf("%s: help: got %q, want at least 10 characters", f.GetName(), f.GetHelp())
		}
		helps[f.GetHelp()]++
	}
	const want = 15
	if len(all) != want || len(helps) != want {
		t.Errorf("metrics and help texts: got %d and %d, want %d of each", len(all), len(helps), want)
	}
}
