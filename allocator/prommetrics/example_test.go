package prommetrics_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/prommetrics"
)

// promhttp.HandlerFor serves the registry.
func Example() {
	registry := prometheus.NewRegistry()
	metrics, err := prommetrics.New(registry)
	if err != nil {
		fmt.Println(err)
		return
	}
	pool, err := allocator.NewPool(allocator.NewMemory(allocator.State{}, nil), allocator.PoolOptions{
		Ranges:   []allocator.Config{{Prefix: netip.MustParsePrefix("10.96.0.0/24")}},
		Observer: metrics,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	metrics.Watch(pool)
	if _, err := pool.Allocate(context.Background(), "default/web", allocator.Request{Kind: allocator.IPv4}); err != nil {
		fmt.Println(err)
		return
	}
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range families {
		if f.GetName() == "kube_apiserver_clusterip_allocator_available_ips" {
			fmt.Println(f.GetMetric()[0].GetLabel()[0].GetValue(), f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	// Output:
	// 10.96.0.0/24 253
}
