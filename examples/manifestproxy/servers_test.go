package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/proxy"
)

// freeAddress gives one at which nobody listens at the moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// awaitPage asks for a page until it has all of these parts.
func awaitPage(t *testing.T, url string, parts ...string) {
	t.Helper()
	var last string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		response, err := http.Get(url)
		if err != nil {
			last = err.Error()
			continue
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close() // What was read counts.
		last = response.Status + "\n" + string(body)
		if err == nil && hasEach(last, parts) {
			return
		}
	}
	t.Errorf("%s gives no page with %q, at last\n%s", url, parts, last)
}

func hasEach(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

func TestHealthAndMetrics(t *testing.T) {
	o := options{
		manifests: "demo", healthz: freeAddress(t), metrics: freeAddress(t),
		backend: backend{open: func() (proxy.Backend, error) { return failing{}, nil }},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- act(ctx, o, logr.Discard()) }()
	awaitPage(t, "http://"+o.healthz+"/livez", "200 OK", `"healthy":true,"status":{"IPv4":`)
	awaitPage(t, "http://"+o.healthz+"/healthz", "200 OK", `"nodeEligible":true`)
	awaitPage(t, "http://"+o.metrics+"/metrics", "200 OK", `vipkit_syncs_total{result="done"} 1`, `kubeproxy_proxy_healthz_total{code="200"} 1`)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("act says %v, wanted no error", err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // nobody has used it
	o.healthz, o.metrics = "", l.Addr().String()
	if err := act(t.Context(), o, logr.Discard()); err == nil || !strings.Contains(err.Error(), "metrics: listen") {
		t.Errorf("with a port that is taken, act says %v, wanted that metrics cannot listen", err)
	}
}
