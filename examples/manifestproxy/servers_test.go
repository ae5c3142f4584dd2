package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/servertest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	o := options{
		files: files{manifests: "demo"}, healthz: servertest.FreeAddress(t), metrics: servertest.FreeAddress(t),
		backend: backend{name: "iptables", open: func() (proxy.Backend, error) { return failing{}, nil }},
	}
	awaitPage := func(url string, parts ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		agenttest.AwaitPage(ctx, t, new(net.Dialer).DialContext, url, parts...)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- act(ctx, o, logr.Discard()) }()
	awaitPage("http://"+o.healthz+"/livez", "200 OK", `"healthy":true,"status":{"IPv4":`)
	awaitPage("http://"+o.healthz+"/healthz", "200 OK", `"nodeEligible":true`)
	awaitPage("http://"+o.metrics+"/debug/services", "200 OK", "Backend ")
	awaitPage("http://"+o.metrics+"/metrics", "200 OK", `vipkit_syncs_total{result="done"} 1`, `kubeproxy_proxy_healthz_total{code="200"} 1`,
		"kubeproxy_sync_proxy_rules_iptables_restore_failures_total")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("act: got error %v, want none", err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.NoError(t, err)
	defer l.Close() //nolint:errcheck // it had no connections
	o.healthz, o.metrics = "", l.Addr().String()
	if err := act(t.Context(), o, logr.Discard()); err == nil || !strings.Contains(err.Error(), "metrics: listen") {
		t.Errorf("act with a port in use: got error %v, want one of listening for metrics", err)
	}
}
