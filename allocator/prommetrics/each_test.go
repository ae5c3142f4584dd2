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
)

// Passes that fail count for what the pool has, and ports are told of only if it has any.
func TestKindsOfPools(t *testing.T) {
	for _, c := range []struct {
		ranges     []string
		ips, ports int
	}{
		{[]string{"10.96.0.0/24"}, 1, 0}, {[]string{"30000-30009"}, 0, 1},
		{[]string{"10.96.0.0/24", "30000-30009"}, 1, 1}, {[]string{"30000-30009", "10.96.0.0/24"}, 1, 1},
		{[]string{"10.96.0.0/24", "fd00::/112"}, 1, 0}, {[]string{"30000-30009", "31000-31009"}, 0, 1},
	} {
		m, r := newMetrics(t)
		newPool(t, m, c.ranges...)
		m.Repaired(nil, errors.New("no"))
		wantSamples(t, r, "reconcile_errors", fmt.Sprintf("apiserver_clusterip_repair_reconcile_errors_total %d\napiserver_nodeport_repair_reconcile_errors_total %d", c.ips, c.ports))
		if got := samples(t, r, "allocated_ports"); (got != "") != (c.ports > 0) {
			t.Errorf("%v: samples of ports: got %q", c.ranges, got)
		}
	}
}

// What was asked for makes a difference, and how long it took.
func TestOddAllocations(t *testing.T) {
	m, r := newMetrics(t)
	m.Allocated(allocator.Allocation{Err: allocator.ErrInvalid, Range: "10.96.0.0/24"})
	m.Allocated(allocator.Allocation{Kind: allocator.Port + 1, Err: allocator.ErrInvalid})
	wantSamples(t, r, "allocation_(errors_)?total", "")
	m.Allocated(allocator.Allocation{Kind: allocator.IPv4, Range: "10.96.0.0/24", Count: 1, Took: 2 * time.Second})
	wantSamples(t, r, "duration_seconds_sum", `kube_apiserver_clusterip_allocator_allocation_duration_seconds_sum{cidr="10.96.0.0/24"} 2`)
}

// A number that is far too large can only have been meant as a port.
func TestNumbersAreMeantAsPorts(t *testing.T) {
	m, r := newMetrics(t)
	m.Repaired([]repair.Finding{{Problem: repair.Invalid, Text: "99999999999999999999999"}, {Problem: repair.Invalid, Text: "web"}}, nil)
	wantSamples(t, r, "_errors_total.type", "apiserver_clusterip_repair_ip_errors_total{type=\"invalid\"} 1\napiserver_nodeport_repair_port_errors_total{type=\"invalid\"} 1")
}

// All metrics are those that were said to come, and say what they are.
func TestDescriptions(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m, err := prommetrics.New(r)
	if err != nil {
		t.Fatal(err)
	}
	newPool(t, m, "10.96.0.0/24", "30000-30009")
	m.Allocated(allocator.Allocation{Kind: allocator.IPv4, Range: "10.96.0.0/24", Count: 1})
	m.Repaired([]repair.Finding{{Problem: repair.Invalid, Text: "web"}, {Problem: repair.Invalid, Text: "1"}}, errors.New("no"))
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	helps := map[string]int{}
	for _, f := range all {
		if len(f.GetHelp()) < 10 {
			t.Errorf("%s: its help is %q", f.GetName(), f.GetHelp())
		}
		helps[f.GetHelp()]++
	}
	const want = 15
	if len(all) != want || len(helps) != want {
		t.Errorf("%d metrics say %d things, want %d", len(all), len(helps), want)
	}
}
