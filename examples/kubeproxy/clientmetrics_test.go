package main

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestClientMetrics checks that each report of client-go gets to a metric with kube-proxy's name and labels.
func TestClientMetrics(t *testing.T) {
	t.Parallel()
	c := &clientMetrics{}
	h := c.hooks()
	registry := prometheus.NewRegistry()
	testenv.NoError(t, c.register(registry))
	if text := exposed(t, registry); !strings.Contains(text, "rest_client_exec_plugin_ttl_seconds +Inf") {
		t.Errorf("without a certificate: got\n%s\nwant that it never ends", text)
	}
	ctx, at := t.Context(), url.URL{Host: "api:6443", Path: "/api/v1/namespaces/default/services"}
	h.RequestLatency.Observe(ctx, "GET", at, time.Second)
	h.RateLimiterLatency.Observe(ctx, "GET", at, time.Minute)
	h.RequestSize.Observe(ctx, "POST", at.Host, 64)
	h.ResponseSize.Observe(ctx, "GET", at.Host, 16<<20)
	h.RequestResult.Increment(ctx, "404", "GET", at.Host)
	h.RequestRetry.IncrementRetry(ctx, "429", "GET", at.Host)
	end := time.Now().Add(-time.Second)
	h.ClientCertExpiry.Set(&end)
	h.ClientCertRotationAge.Observe(time.Hour)
	h.ExecPluginCalls.Increment(1, "plugin_execution_error")
	h.TransportCacheEntries.Observe(3)
	h.TransportCreateCalls.Increment("hit")
	h.TransportCacheGCCalls.Increment("deleted")
	h.TransportCAReloads.Increment("success", "ca_rotated")
	h.TransportCertRotationGCCalls.Increment()
	text := exposed(t, registry)
	for _, want := range []string{
		`rest_client_request_duration_seconds_bucket{host="api:6443",verb="GET",le="0.5"} 0`,
		`rest_client_request_duration_seconds_bucket{host="api:6443",verb="GET",le="1"} 1`,
		`rest_client_rate_limiter_duration_seconds_bucket{host="api:6443",verb="GET",le="60"} 1`,
		`rest_client_request_size_bytes_bucket{host="api:6443",verb="POST",le="64"} 1`,
		`rest_client_response_size_bytes_bucket{host="api:6443",verb="GET",le="1.6777216e+07"} 1`,
		`rest_client_requests_total{code="404",host="api:6443",method="GET"} 1`,
		`rest_client_request_retries_total{code="429",host="api:6443",verb="GET"} 1`,
		`rest_client_exec_plugin_ttl_seconds -1`,
		`rest_client_exec_plugin_certificate_rotation_age_bucket{le="3600"} 1`,
		`rest_client_exec_plugin_certificate_rotation_age_bucket{le="1.24416e+08"} 1`,
		`rest_client_exec_plugin_call_total{call_status="plugin_execution_error",code="1"} 1`,
		`rest_client_transport_cache_entries 3`,
		`rest_client_transport_create_calls_total{result="hit"} 1`,
		`rest_client_transport_cache_gc_calls_total{result="deleted"} 1`,
		`rest_client_transport_ca_reload_total{reason="ca_rotated",result="success"} 1`,
		`rest_client_transport_cert_rotation_gc_calls_total 1`,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("got\n%s\nwant also %s", text, want)
		}
	}
	if strings.Contains(text, "services") {
		t.Errorf("got\n%s\nwant no path of the API", text)
	}
}
