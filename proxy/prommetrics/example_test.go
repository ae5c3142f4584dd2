package prommetrics_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
	"github.com/vipkit/vipkit/proxy/prommetrics"
)

// nothing is a backend that does nothing.
type nothing struct{ proxy.NoAbilities }

func (nothing) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return nil }
func (nothing) Cleanup(context.Context) error                               { return nil }

// The metrics observe a Runner. A program serves the registry with promhttp.HandlerFor.
func Example() {
	registry := prometheus.NewRegistry()
	metrics, err := prommetrics.New(registry, prommetrics.Options{Mode: "nftables"})
	if err != nil {
		fmt.Println(err)
		return
	}
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	tracker.Synced()

	ctx, cancel := context.WithCancel(context.Background())
	runner := &proxy.Runner{Source: tracker, Backend: nothing{}, Observers: []proxy.Observer{
		{Synced: func(proxy.Sync) { cancel() }}, // One is enough for an example.
		metrics.Observer(tracker),
	}}
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

// A proxy with health checks and metrics.
func ExampleMetrics_Observer() {
	ctx := context.Background()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	runner := proxy.Runner{Source: tracker, Backend: nothing{}, ResyncInterval: time.Second}
	registry := prometheus.NewRegistry()
	metrics, err := prommetrics.New(registry, prommetrics.Options{Mode: "nftables"})
	if err != nil {
		return
	}
	server, err := health.New(health.Options{
		Address: ":10256", NodeEligible: tracker.NodeEligible, Timeout: time.Minute, Answered: metrics.HealthAnswered,
		Pages: map[string]http.Handler{"127.0.0.1:10249": promhttp.HandlerFor(registry, promhttp.HandlerOpts{})},
	})
	if err != nil {
		return
	}
	runner.Observers = append(runner.Observers, metrics.Observer(tracker), server.Observer())
	go server.Run(ctx)
	fmt.Println(runner.Run(ctx))
}
