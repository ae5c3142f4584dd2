package main

import (
	"context"
	"math"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientgo "k8s.io/client-go/tools/metrics"
)

// clientMetrics are the metrics of the client of the API server, with the names, labels and buckets of
// kube-proxy's.
type clientMetrics struct {
	all []prometheus.Collector
	// expiry is when the certificate of the kubeconfig's plugin ends; nil for none.
	expiry atomic.Pointer[time.Time]
}

// newClientMetrics has client-go report to the metrics that it returns. client-go takes only the first ones
// of a process.
func newClientMetrics() *clientMetrics {
	c := &clientMetrics{}
	clientgo.Register(c.hooks())
	return c
}

// hooks makes the metrics, and returns what updates them.
func (c *clientMetrics) hooks() clientgo.RegisterOpts {
	const prefix = "rest_client_"
	seconds := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	sizes := []float64{64, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
	c.gauge(prefix+"exec_plugin_ttl_seconds", "How long the certificate of the kubeconfig's plugin is still valid; +Inf without one.", c.ttl)
	var entries atomic.Int64
	c.gauge(prefix+"transport_cache_entries", "Transports in the cache.", func() float64 { return float64(entries.Load()) })
	created := c.counter(prefix+"transport_create_calls_total", "Requests for a transport, by what the cache had.", "result")
	forgotten := c.counter(prefix+"transport_cache_gc_calls_total", "Transports that the cache may forget, by the result.", "result")
	reloaded := c.counter(prefix+"transport_ca_reload_total", "Attempts to read certificates of authorities again.", "result", "reason")
	rotations := c.counter(prefix+"transport_cert_rotation_gc_calls_total", "Transports forgotten whose certificate was rotated.").WithLabelValues()
	return clientgo.RegisterOpts{
		RequestLatency:     latency{c.histogram(prefix+"request_duration_seconds", "Time of a request.", seconds, "verb", "host")},
		RateLimiterLatency: latency{c.histogram(prefix+"rate_limiter_duration_seconds", "How long a request waited because of the client's own limit.", seconds, "verb", "host")},
		RequestSize:        size{c.histogram(prefix+"request_size_bytes", "Size of a request.", sizes, "verb", "host")},
		ResponseSize:       size{c.histogram(prefix+"response_size_bytes", "Size of a response.", sizes, "verb", "host")},
		RequestResult:      requests{c.counter(prefix+"requests_total", "Requests, by status.", "code", "method", "host")},
		RequestRetry:       retries{c.counter(prefix+"request_retries_total", "Requests that were sent again, by status.", "code", "verb", "host")},
		ClientCertExpiry:   c,
		ClientCertRotationAge: age{c.histogram(prefix+"exec_plugin_certificate_rotation_age", "Age in seconds of certificates of the kubeconfig's plugin that were replaced.", []float64{
			600, 1800, 3600, 4 * 3600, 86400, 7 * 86400, 30 * 86400, 90 * 86400, 180 * 86400, 360 * 86400, 1440 * 86400,
		}).WithLabelValues()},
		ExecPluginCalls:              calls{c.counter(prefix+"exec_plugin_call_total", "Runs of the kubeconfig's plugin, by exit status.", "code", "call_status")},
		TransportCacheEntries:        observed(func(n int) { entries.Store(int64(n)) }),
		TransportCreateCalls:         results(func(result string) { created.WithLabelValues(result).Inc() }),
		TransportCacheGCCalls:        results(func(result string) { forgotten.WithLabelValues(result).Inc() }),
		TransportCAReloads:           reloads(func(result, reason string) { reloaded.WithLabelValues(result, reason).Inc() }),
		TransportCertRotationGCCalls: rotated(rotations.Inc),
	}
}

// register registers the metrics.
func (c *clientMetrics) register(registry prometheus.Registerer) error {
	for _, m := range c.all {
		if err := registry.Register(m); err != nil {
			return err
		}
	}
	return nil
}

func (c *clientMetrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	m := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	c.all = append(c.all, m)
	return m
}

func (c *clientMetrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	m := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	c.all = append(c.all, m)
	return m
}

func (c *clientMetrics) gauge(name, help string, value func() float64) {
	c.all = append(c.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
}

// Set takes the end of the certificate of the kubeconfig's plugin.
func (c *clientMetrics) Set(expiry *time.Time) { c.expiry.Store(expiry) }

func (c *clientMetrics) ttl() float64 {
	if end := c.expiry.Load(); end != nil {
		return time.Until(*end).Seconds()
	}
	return math.Inf(1)
}

// The types below fit metrics to the interfaces of client-go.

type latency struct{ m *prometheus.HistogramVec }

func (x latency) Observe(_ context.Context, verb string, u url.URL, d time.Duration) {
	x.m.WithLabelValues(verb, u.Host).Observe(d.Seconds())
}

type size struct{ m *prometheus.HistogramVec }

func (x size) Observe(_ context.Context, verb, host string, bytes float64) {
	x.m.WithLabelValues(verb, host).Observe(bytes)
}

type age struct{ m prometheus.Observer }

func (x age) Observe(d time.Duration) { x.m.Observe(d.Seconds()) }

type requests struct{ m *prometheus.CounterVec }

func (x requests) Increment(_ context.Context, code, method, host string) {
	x.m.WithLabelValues(code, method, host).Inc()
}

type retries struct{ m *prometheus.CounterVec }

func (x retries) IncrementRetry(_ context.Context, code, verb, host string) {
	x.m.WithLabelValues(code, verb, host).Inc()
}

type calls struct{ m *prometheus.CounterVec }

func (x calls) Increment(code int, status string) {
	x.m.WithLabelValues(strconv.Itoa(code), status).Inc()
}

type observed func(int)

func (x observed) Observe(n int) { x(n) }

type results func(string)

func (x results) Increment(result string) { x(result) }

type reloads func(result, reason string)

func (x reloads) Increment(result, reason string) { x(result, reason) }

type rotated func()

func (x rotated) Increment() { x() }
