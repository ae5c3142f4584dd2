package prommetrics_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/prommetrics"
)

// nothing is a backend that programs nothing.
type nothing struct{}

func (nothing) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return nil }
func (nothing) Cleanup(context.Context) error                               { return nil }

// The metrics stand between the watch and the tracker, and follow the Runner.
// promhttp.HandlerFor serves the registry.
func Example() {
	registry := prometheus.NewRegistry()
	metrics, err := prommetrics.New(registry, prommetrics.Options{Mode: "nftables"})
	if err != nil {
		fmt.Println(err)
		return
	}
	tracker := metrics.Tracker(proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"}))
	tracker.Synced()

	ctx, cancel := context.WithCancel(context.Background())
	runner := &proxy.Runner{Source: tracker, Backend: nothing{}}
	runner.Observe = func(proxy.Sync) { cancel() } // One is enough for an example.
	metrics.Watch(runner)
	if err := runner.Run(ctx); err != nil {
		fmt.Println(err)
		return
	}
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range families {
		if f.GetName() == "vipkit_syncs_total" {
			for _, m := range f.GetMetric() {
				fmt.Println(m.GetLabel()[0].GetValue(), m.GetCounter().GetValue())
			}
		}
	}
	// Output:
	// done 1
	// failed 0
	// partial 0
}
