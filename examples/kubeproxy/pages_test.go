package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/proxy"
)

// answer is a status, and a part of what comes with it.
type answer struct {
	status int
	part   string
}

// wantStatus asks for a page from an address.
func (a *agent) wantStatus(t *testing.T, from, path string, want answer) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	a.pages(prometheus.NewRegistry()).ServeHTTP(w, r)
	if path == "/proxyMode" && (w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Content-Type") != "text/plain; charset=utf-8") {
		t.Errorf("headers of %s are %v, wanted plain text and nothing else", path, w.Header())
	}
	if w.Code != want.status || !strings.Contains(w.Body.String(), want.part) {
		t.Errorf("a client at %s gets of %s status %d and\n%s\nwanted %d and %q", from, path, w.Code, w.Body, want.status, want.part)
	}
}

// What is below /debug shows more than everybody may see.
func TestDebugPagesAreLocal(t *testing.T) {
	a := &agent{config: &config{kubeProxyConfiguration: defaults()}, mode: nftablesMode}
	a.wantStatus(t, "127.0.0.1:1000", "/debug/services", answer{http.StatusOK, "Nothing has been programmed yet"})
	s := proxy.NewSnapshot(&proxy.Node{Name: "node-1"})
	a.latest.Store(&s)
	for _, local := range []string{"127.0.0.1:1000", "[::1]:1000", "[::ffff:127.0.0.1]:1"} {
		a.wantStatus(t, local, "/debug/services", answer{http.StatusOK, "Mode nftables, generation"})
		a.wantStatus(t, local, "/debug/pprof/", answer{http.StatusNotFound, ""})
	}
	a.EnableProfiling = true
	a.wantStatus(t, "127.0.0.1:1000", "/debug/pprof/", answer{http.StatusOK, "goroutine"})
	a.wantStatus(t, "127.0.0.1:1000", "/debug/pprof/cmdline", answer{http.StatusOK, "test"})
	a.wantStatus(t, "127.0.0.1:1000", "/debug/pprof/symbol", answer{http.StatusOK, "num_symbols"})
	for _, path := range []string{"/debug/services", "/debug/pprof/", "/debug/pprof/profile?seconds=1"} {
		a.wantStatus(t, "192.0.2.7:1000", path, answer{http.StatusForbidden, "only for clients on this node"})
	}
	for path, part := range map[string]string{"/proxyMode": nftablesMode, "/healthz": "ok", "/metrics": ""} {
		a.wantStatus(t, "192.0.2.7:1000", path, answer{http.StatusOK, part})
	}
}

// patient notes that nothing is to end what is read.
type patient struct {
	*httptest.ResponseRecorder
	deadlines []time.Time
	err       error
}

func (p *patient) SetReadDeadline(t time.Time) error {
	p.deadlines = append(p.deadlines, t)
	return p.err
}

// A server that ends what it reads after some time ends profiles with it.
func TestProfilesTakeTheirTime(t *testing.T) {
	a := &agent{config: &config{kubeProxyConfiguration: defaults()}, mode: nftablesMode}
	w := &patient{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/services", http.NoBody)
	r.RemoteAddr = "127.0.0.1:1000"
	a.pages(prometheus.NewRegistry()).ServeHTTP(w, r)
	if want := []time.Time{{}}; !slices.Equal(w.deadlines, want) {
		t.Errorf("deadlines of reading are %v, wanted one that is none", w.deadlines)
	}
}
