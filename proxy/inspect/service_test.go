package inspect

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// TestServicePage checks the page of one Service: endpoints in pools and outside of them with the
// reasons, problems, limits and the error of a refused port, of this Service alone.
func TestServicePage(t *testing.T) {
	web := service("web", "10.96.0.10")
	web.Spec.ExternalIPs = []string{"<nonsense>"}
	web.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
	other := service("other", "10.96.0.11")
	other.Spec.Ports[0].NodePort = 0
	other.Spec.ExternalIPs = []string{"of the other"}
	tracker := track(web, other)
	tracker.UpdateEndpointSlice(objects.Slice("b", "web", "10.244.2.11 S @<node-2>"))
	s := synced(t, tracker)
	name := proxy.ServicePortName{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}, Port: "http", Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
	page := New("Mode test")
	testenv.NoError(t, page.Observer(tracker).Begin(&proxy.Runner{Backend: checker{}}))
	page.Observer(tracker).Synced(proxy.Sync{
		Applied: s, Start: time.Now(), Refused: proxy.PortErrors{name: errors.New("<full>")},
		Limits: []*proxy.Problem{{Kind: "Service", NamespacedName: name.NamespacedName, Field: "spec.x", Err: errors.New("half")}},
	})
	request := func(service, accept string) string {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/x?service="+service, http.NoBody)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		return w.Body.String()
	}
	body := request("default/web", "text/html")
	for _, part := range []string{
		"<title>default/web on node-1</title>", "<h1>Service default/web</h1>", "<h2>default/web:http/TCP/IPv4</h2>", "Not programmed: &lt;full&gt;",
		"external Local", "2 endpoints", "&#34;&lt;nonsense&gt;&#34; is not an IP address", "spec.x: half", "&lt;node-2&gt;",
		`<td data-label="Local pool"><span class="forward">in</span>: ready, on this node`, `<td data-label="Local pool"><span class="pass">out</span>: on another node`,
		`<td data-label="Cluster pool"><span class="pass">out</span>: not ready`,
		"what was programmed <time", `<a href="?destination=10.96.0.10%3A80&amp;protocol=TCP#packet">`,
	} {
		if !strings.Contains(body, part) {
			t.Errorf("the page lacks %q", part)
		}
	}
	if strings.Contains(body, "of the other") || strings.Contains(body, "default/other") || t.Failed() {
		t.Errorf("got page\n%s", body)
	}
	if body := request("default/none", "text/html"); !strings.Contains(body, "This node serves no port of this Service.") {
		t.Errorf("an unknown Service: got page\n%s", body)
	}
	wantPorts(t, request("default/web", "application/json"))
}

// wantPorts checks the JSON of the page of the Service.
func wantPorts(t *testing.T, text string) {
	t.Helper()
	var fields struct {
		Service struct {
			Ports []struct {
				Refused string
				All     []struct {
					NodeName, ClusterReason string
					InCluster               bool
				}
			}
		}
	}
	testenv.NoError(t, json.Unmarshal([]byte(text), &fields))
	if ports := fields.Service.Ports; len(ports) != 1 || ports[0].Refused != "<full>" || len(ports[0].All) != 2 || !ports[0].All[0].InCluster || ports[0].All[1].ClusterReason != "not ready" {
		t.Errorf("JSON: got %+v, want the port with both endpoints", fields)
	}
}

// TestNeverProgrammed checks that a Service that was refused from the start has a page with the reason,
// and that the list names it.
func TestNeverProgrammed(t *testing.T) {
	s := synced(t, track(service("web", "10.96.0.10"), service("other", "10.96.0.11")))
	name := proxy.ServicePortName{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}, Port: "http", Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
	page := New("Mode test")
	refused := proxy.PortErrors{name: errors.New("<full>")}
	page.Observer(nil).Synced(proxy.Sync{Snapshot: s, Applied: proxy.NewSnapshot(s.Node()), Err: refused, Refused: refused})
	for query, want := range map[string][]string{
		"service=default/web": {"<h2>default/web:http/TCP/IPv4</h2>", "Not programmed: &lt;full&gt;"},
		"":                    {`<h2 id="refused">Not programmed</h2>`, `<a href="?service=default/web">default/web:http/TCP/IPv4</a>: &lt;full&gt;`},
	} {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/x?"+query, http.NoBody))
		body := w.Body.String()
		for _, part := range want {
			if !strings.Contains(body, part) {
				t.Errorf("query %q: the page lacks %q", query, part)
			}
		}
		if strings.Contains(body, "default/other") || t.Failed() {
			t.Errorf("query %q: got page\n%s", query, body)
		}
	}
}
