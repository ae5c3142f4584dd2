package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
	"github.com/vipkit/vipkit/proxy/prommetrics"
)

// healthServer gives the server for those who ask whether the proxy works, and
// for the health check node ports. No Node object is asked: the node is always
// eligible for load balancers.
func healthServer(o options, runner *proxy.Runner, metrics *prommetrics.Metrics, log logr.Logger) (*health.Server, error) {
	s := health.New(health.Options{
		Address:  o.healthz,
		Answered: metrics.HealthAnswered,
		Report: func(service types.NamespacedName, err error) {
			what := "health check node port of " + service.String()
			if service.Name == "" {
				what = "address of -healthz-bind-address"
			}
			if err != nil {
				log.Error(err, "HTTP server not listening", "at", what)
				return
			}
			log.Info("HTTP server listening again", "at", what)
		},
	})
	return s, s.Watch(runner)
}

func newMetrics(mode string) (*prommetrics.Metrics, *prometheus.Registry, error) {
	registry := prometheus.NewRegistry()
	metrics, err := prommetrics.New(registry, prommetrics.Options{Mode: mode})
	return metrics, registry, err
}

// serveMetrics serves what a registry has until ctx ends; nowhere if there is no
// address.
func serveMetrics(ctx context.Context, address string, registry *prometheus.Registry) error {
	if address == "" {
		<-ctx.Done()
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}
