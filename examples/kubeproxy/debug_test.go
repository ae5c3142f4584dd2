package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/proxy"
)

// debugAgent is an agent whose dataplane holds a Service.
func debugAgent(t *testing.T) *agent {
	t.Helper()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	tracker.UpdateNode(node("192.0.2.1"))
	web := service("<web>", "10.96.0.10")
	web.Spec.ExternalIPs = []string{"nonsense"}
	tracker.UpdateService(web)
	tracker.UpdateEndpointSlice(slice("<web>", 8080))
	tracker.UpdateService(service("other", "10.96.0.11"))
	tracker.Synced()
	s, err := tracker.Next(t.Context(), proxy.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{config: defaults(), mode: nftablesMode, log: logr.Discard()}
	a.latest.Store(&s)
	return a
}

// get asks an agent for a page.
func get(t *testing.T, a *agent, from, path string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	a.pages(prometheus.NewRegistry()).ServeHTTP(w, r)
	return w
}

func TestDebugPage(t *testing.T) {
	a := debugAgent(t)
	for name, tc := range map[string]struct {
		query         string
		parts, absent []string
	}{
		"all":       {"", []string{"default/&lt;web&gt;:http/TCP/IPv4", "default/other", "10.96.0.10:80", "0.0.0.0:30080", "10.244.1.11:8080", "spec.externalIPs[0]", "Zone east"}, []string{"<web>", "<b>"}},
		"filter":    {"?filter=other", []string{"<td>default/other"}, []string{"<td>default/&lt;web"}},
		"from pod":  {"?protocol=TCP&source=10.244.1.11&interface=veth0&destination=10.96.0.10:80", []string{"<b>forward</b>", "10.244.1.11:8080</code> masqueraded", "<li>"}, nil},
		"from node": {"?protocol=TCP&destination=10.96.0.10:80", []string{"<b>forward</b>"}, nil},
		"node port": {"?protocol=TCP&source=198.51.100.1&interface=eth0&destination=192.0.2.1:30080", []string{"<b>forward</b>"}, nil},
		"nobody":    {"?protocol=TCP&source=198.51.100.1&interface=eth0&destination=203.0.113.1:80", []string{"<b>pass</b>"}, nil},
		"empty":     {"?protocol=UDP&destination=10.96.0.10:80", []string{"<b>reject</b>"}, nil},
		"no port":   {"?destination=10.96.0.10", []string{"the destination is an address and a port"}, []string{"<b>"}},
		"bad name":  {"?destination=10.96.0.10:80&source=x", []string{"the source is an address"}, []string{"<b>"}},
		"no family": {"?destination=[fd00::1]:80", []string{"name a source"}, []string{"<b>"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := get(t, a, "127.0.0.1:1000", "/debug/services"+tc.query)
			body := w.Body.String()
			if w.Code != http.StatusOK || !strings.HasSuffix(body, "</html>\n") {
				t.Errorf("status %d, and the page ends with %q", w.Code, body[max(0, len(body)-200):])
			}
			for _, part := range tc.parts {
				if !strings.Contains(body, part) {
					t.Errorf("the page lacks %q:\n%s", part, body)
				}
			}
			for _, part := range tc.absent {
				if strings.Contains(body, part) {
					t.Errorf("the page has %q:\n%s", part, body)
				}
			}
		})
	}
	for from, want := range map[string]int{"192.0.2.7:1000": http.StatusForbidden, "[::1]:1000": http.StatusOK, "[::ffff:127.0.0.1]:1": http.StatusOK} {
		if w := get(t, a, from, "/debug/services"); w.Code != want {
			t.Errorf("a client at %s gets status %d, wanted %d", from, w.Code, want)
		}
	}
}

func TestDebugPageBeforeAnythingIsKnown(t *testing.T) {
	a := &agent{config: defaults(), mode: nftablesMode}
	w := get(t, a, "127.0.0.1:1000", "/debug/services?destination=10.96.0.10:80")
	if body := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(body, "Nothing has been programmed yet") {
		t.Errorf("status %d, and the page\n%s\nwanted one that says that there is nothing", w.Code, body)
	}
}

// Profiles take time, and show more than everybody may see.
func TestProfilingIsLocal(t *testing.T) {
	a := debugAgent(t)
	a.serving.profiling = true
	for from, want := range map[string]int{"192.0.2.7:1000": http.StatusForbidden, "127.0.0.1:1000": http.StatusOK} {
		if w := get(t, a, from, "/debug/pprof/"); w.Code != want {
			t.Errorf("a client at %s gets status %d, wanted %d", from, w.Code, want)
		}
	}
}

func TestProfilingIsOff(t *testing.T) {
	if w := get(t, debugAgent(t), "127.0.0.1:1000", "/debug/pprof/"); w.Code != http.StatusNotFound {
		t.Errorf("status %d without profiling, wanted 404", w.Code)
	}
}
