package health

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// Health check node ports follow what the dataplane has, also while removing stale flows fails:
// then a load balancer must not send clients to a node that has no endpoint for them any more.
func TestCountsFollowThoughFlowsFail(t *testing.T) {
	s, r := watching(t, Options{})
	check := func(when string, status int, weight string) {
		t.Helper()
		w := httptest.NewRecorder()
		s.serviceHandler(key("a")).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		if got := w.Header().Get("X-Load-Balancing-Endpoint-Weight"); w.Code != status || got != weight {
			t.Errorf("%s: got status %d and weight %q, want %d and %q", when, w.Code, got, status, weight)
		}
	}
	flowsFail := func(ports ...*proxy.ServicePort) {
		x := proxy.NewSnapshot(atLoopback(), ports...)
		r.Synced(proxy.Sync{Snapshot: x, Applied: x, Start: time.Now(), Err: io.ErrNoProgress})
	}
	flowsFail(servicePort("a", v1.IPv4Protocol, 30001, "10.0.0.1", "10.0.0.2"))
	check("a first Apply", http.StatusOK, "2")
	flowsFail(servicePort("a", v1.IPv4Protocol, 30001))
	check("no endpoint is left", http.StatusServiceUnavailable, "0")
	r.Synced(proxy.Sync{Snapshot: proxy.NewSnapshot(atLoopback()), Start: time.Now(), Err: proxy.ErrDataplaneLost})
	check("the dataplane is lost", http.StatusServiceUnavailable, "0")
}
