package agent

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// answer is the status of a response, and a part of its body.
type answer struct {
	status int
	part   string
}

// wantStatus requests a path as a client with an address.
func (a *instance) wantStatus(t *testing.T, from, path string, want answer) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	r.RemoteAddr, r.Host = from, "localhost:10249"
	w := httptest.NewRecorder()
	a.pages(prometheus.NewRegistry()).ServeHTTP(w, r)
	if path == "/proxyMode" && (w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Content-Type") != "text/plain; charset=utf-8") {
		t.Errorf("headers of %s: got %v, want plain text", path, w.Header())
	}
	if w.Code != want.status || !strings.Contains(w.Body.String(), want.part) {
		t.Errorf("client %s, path %s: got status %d and\n%s\nwant %d and %q", from, path, w.Code, w.Body, want.status, want.part)
	}
}

// TestDebugPagesAreLocal checks that paths below /debug serve only clients on the node.
func TestDebugPagesAreLocal(t *testing.T) {
	t.Parallel()
	a := &instance{config: newConfig("linux"), mode: nftablesMode, page: inspect.New("Mode nftables")}
	a.wantStatus(t, "127.0.0.1:1000", "/debug/services", answer{http.StatusOK, "Nothing has been programmed yet"})
	a.page.Observer(nil).Synced(proxy.Sync{Applied: proxy.NewSnapshot(&proxy.Node{Name: "node-1"})})
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

// deadlineRecorder records the read deadlines that a handler sets.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	deadlines []time.Time
	err       error
}

func (p *deadlineRecorder) SetReadDeadline(t time.Time) error {
	p.deadlines = append(p.deadlines, t)
	return p.err
}

// TestNoReadDeadline checks that debug pages clear the read deadline of the server, which would
// end profiles.
func TestNoReadDeadline(t *testing.T) {
	t.Parallel()
	a := &instance{config: newConfig("linux"), mode: nftablesMode, page: inspect.New("Mode nftables")}
	w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/services", http.NoBody)
	r.RemoteAddr, r.Host = "127.0.0.1:1000", "localhost:10249"
	a.pages(prometheus.NewRegistry()).ServeHTTP(w, r)
	if want := []time.Time{{}}; !slices.Equal(w.deadlines, want) {
		t.Errorf("read deadlines: got %v, want one zero time", w.deadlines)
	}
}
