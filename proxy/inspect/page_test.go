package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func service(name, ip string) *v1.Service {
	return objects.Service(name, ip, objects.Ports("http 80:30080"), func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeNodePort })
}

// snapshot returns the snapshot of a tracker with a Node and some Services, of which the
// first has an endpoint.
func snapshot(t *testing.T, services ...*v1.Service) proxy.Snapshot {
	t.Helper()
	return synced(t, track(services...))
}

func track(services ...*v1.Service) *proxy.ServiceChangeTracker {
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	tracker.UpdateNode(objects.Node("node-1", "east", "192.0.2.1"))
	addServices(tracker, services...)
	return tracker
}

// addServices adds Services, of which the first has an endpoint.
func addServices(tracker *proxy.ServiceChangeTracker, services ...*v1.Service) {
	for _, s := range services {
		tracker.UpdateService(s)
	}
	tracker.UpdateEndpointSlice(objects.Slice("a", services[0].Name, "10.244.1.11 @node-1"))
}

func synced(t *testing.T, tracker *proxy.ServiceChangeTracker) proxy.Snapshot {
	t.Helper()
	tracker.Synced()
	return snapshots.Next(t, tracker, proxy.Snapshot{})
}

// newPage returns the page of a proxy that has applied a snapshot.
func newPage(s proxy.Snapshot) *Page {
	p := New("Mode test")
	p.Observer(nil).Synced(proxy.Sync{Applied: s, Start: time.Now()})
	return p
}

// get requests the page as HTML.
func get(t *testing.T, s proxy.Snapshot, query string) string {
	t.Helper()
	w := httptest.NewRecorder()
	newPage(s).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/any"+query, http.NoBody))
	body := w.Body.String()
	if w.Code != http.StatusOK || !strings.HasSuffix(body, "</html>\n") {
		t.Errorf("got status %d and a page that ends with %q, want 200 and a whole page", w.Code, body[max(0, len(body)-200):])
	}
	if got := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none'") {
		t.Errorf("Content-Security-Policy: got %q, want one that loads nothing by default", got)
	}
	if got := w.Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control: got %q, want no-store: the state of the node changes all the time, and is not public", got)
	}
	return body
}

// forward is the word of a verdict.
const forward = `<span class="forward">forward</span>`

func TestPage(t *testing.T) {
	web := service("<web>", "10.96.0.10")
	web.Spec.ExternalIPs = []string{"nonsense"}
	s := snapshot(t, web, service("other", "10.96.0.11"))
	for name, tc := range map[string]struct {
		query         string
		parts, absent []string
	}{
		"all": {"", []string{
			`<a href="?service=default/%3cweb%3e">default/&lt;web&gt;:http/TCP/IPv4</a>`, "default/other", "10.96.0.10:80", "0.0.0.0:30080", "10.244.1.11:8080",
			"spec.externalIPs[0]", "<dd>east", "Mode test, generation", "2 of 2 service ports",
		}, []string{"<web>", `<span class="pass">`}},
		"filter":    {"?filter=OTHER", []string{">default/other", "1 of 2 service ports", `value="OTHER"`}, []string{">default/&lt;web"}},
		"from pod":  {"?protocol=TCP&source=10.244.1.11&interface=veth0&destination=10.96.0.10:80", []string{"<p>" + forward, "10.244.1.11:8080</code> masqueraded", "<li>"}, nil},
		"mapped":    {"?protocol=TCP&source=::ffff:10.244.1.11&interface=veth0&destination=[::ffff:10.96.0.10]:80", []string{"<p>" + forward, "10.244.1.11:8080</code> masqueraded"}, nil},
		"from node": {"?protocol=TCP&destination=10.96.0.10:80", []string{"<p>" + forward}, nil},
		"node port": {"?protocol=TCP&source=198.51.100.1:999&interface=eth0&destination=192.0.2.1:30080", []string{"<code>198.51.100.1:999</code> by eth0", "<p>" + forward}, nil},
		"foreign":   {"?protocol=TCP&source=198.51.100.1&interface=eth0&destination=203.0.113.1:80", []string{`<p><span class="pass">pass</span>`}, nil},
		"empty":     {"?protocol=UDP&destination=10.96.0.10:80", []string{`<p><span class="reject">reject</span>`}, nil},
		"TCP":       {"?destination=10.96.0.10:80", []string{"<p>TCP from <code>192.0.2.1:40000</code>, this node, to <code>10.96.0.10:80</code>:</p>", "<p>" + forward}, nil},
		"udp":       {"?protocol=udp&interface=eth0&source=198.51.100.1&destination=10.96.0.10:80", []string{"<p>UDP from <code>198.51.100.1:40000</code> by eth0 to <code>10.96.0.10:80</code>:</p>", "<option selected>UDP</option>", `<p><span class="reject">reject</span>`}, nil},
		"name":      {"?destination=default/other:80&filter=web", []string{"to <code>10.96.0.11:80</code>", `value="default/other:80"`, `name="filter" value="web"`}, nil},
		"ICMP":      {"?protocol=ICMP&destination=10.96.0.10:80", []string{"protocol must be one of [TCP UDP SCTP], not &#34;ICMP&#34;"}, []string{"<ol>"}},
		"no target": {"?source=10.244.1.11", []string{"destination must be address:port"}, []string{"<ol>"}},
		"bad name":  {"?destination=10.96.0.10:80&source=x", []string{"source must be an IP address, or address:port, not &#34;x&#34;"}, []string{"<ol>"}},
		"no family": {"?destination=[fd00::1]:80", []string{"source is required"}, []string{"<ol>"}},
		"no match":  {"?filter=nobody", []string{"0 of 2 service ports", "No name and no address has the text of the filter."}, []string{"<table", "no Services to serve"}},
		"last sync": {"", []string{"<dt>Last sync", "took 0s", `<span class="done">done</span>`, "shows what was programmed"}, nil},
		"bad page":  {"?page=-3", []string{"2 of 2 service ports.</p>"}, nil},
		"far page":  {"?page=99", []string{"2 of 2 service ports.</p>", "default/other"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			body := get(t, s, tc.query)
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
}

func TestPageBeforeFirstSync(t *testing.T) {
	if body := get(t, proxy.Snapshot{}, "?destination=10.96.0.10:80"); !strings.Contains(body, "Nothing has been programmed yet") {
		t.Errorf("got page\n%s\nwant one that says that nothing has been programmed", body)
	}
	if body := get(t, proxy.Snapshot{}, "?service=default/web"); !strings.Contains(body, "is known after the first sync") || strings.Contains(body, "serves no port") {
		t.Errorf("got page of a Service\n%s\nwant one that does not know yet whether the node serves it", body)
	}
}

func TestPageWithoutServices(t *testing.T) {
	if body := get(t, proxy.NewSnapshot(&proxy.Node{Name: "node-1"}), ""); !strings.Contains(body, "This node has no Services to serve.") {
		t.Errorf("got page\n%s\nwant one that says that there are no Services", body)
	}
}

// Many problems are folded, so that the rest of the page stays in sight.
func TestProblemsAreFolded(t *testing.T) {
	for n, want := range map[int]string{1: "<details open><summary>1 problem<", maxListed: "<details open><summary>10 problems<", maxListed + 1: "<details><summary>11 problems<"} {
		var all []*v1.Service
		for i := range n {
			s := service(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.0.%d", 10+i))
			s.Spec.Ports[0].NodePort, s.Spec.ExternalIPs = 0, []string{"nonsense"}
			all = append(all, s)
		}
		if body := get(t, snapshot(t, all...), ""); !strings.Contains(body, want) {
			t.Errorf("%d problems: the page lacks %q:\n%s", n, want, body)
		}
	}
}

// checker is a backend that checks the node.
type checker struct {
	proxy.Backend
	check func(proxy.Snapshot) []*proxy.Problem
}

func (c checker) Abilities() proxy.Abilities { return proxy.Abilities{CheckNode: c.check} }

// The problems of the node are listed before those of objects, in the HTML and in the JSON.
func TestChecks(t *testing.T) {
	web := service("web", "10.96.0.10")
	web.Spec.ExternalIPs = []string{"nonsense"}
	s := snapshot(t, web)
	check := func(of proxy.Snapshot) []*proxy.Problem {
		if of.Generation() != s.Generation() {
			t.Errorf("checked generation %d, want %d", of.Generation(), s.Generation())
		}
		return []*proxy.Problem{{Kind: "Node", Field: "net.<x>", Err: errors.New("is 0")}}
	}
	page := newPage(s)
	testenv.NoError(t, page.Observer(nil).Begin(&proxy.Runner{Backend: checker{check: check}}))
	for accept, want := range map[string][]string{
		"text/html":        {"<li>Node : net.&lt;x&gt;: is 0</li>", "spec.externalIPs[0]"},
		"application/json": {`"Node : net.\u003cx\u003e: is 0"`, "spec.externalIPs[0]"},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/any", http.NoBody)
		r.Header.Set("Accept", accept)
		page.ServeHTTP(w, r)
		first, second := strings.Index(w.Body.String(), want[0]), strings.Index(w.Body.String(), want[1])
		if first < 0 || second < first {
			t.Errorf("%s: got %q at %d and %q at %d, want both, in this order", accept, want[0], first, want[1], second)
		}
	}
}

// The page has a bounded size however many Services or problems there are.
func TestPageIsBounded(t *testing.T) {
	var all []*v1.Service
	for i := range maxShown + 7 { // two pages and a part
		s := service(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.%d.%d", 1+i/200, i%200))
		s.Spec.Ports[0].NodePort = 0
		s.Spec.ExternalIPs = []string{"nonsense"}
		all = append(all, s)
	}
	body := get(t, snapshot(t, all...), "")
	if got := strings.Count(body, ">default/"); got != maxPorts || !strings.Contains(body, "page 1 of 3") || !strings.Contains(body, `rel="next" href="?page=2#list"`) {
		t.Errorf("got %d service ports on the page, want %d, and a link to the second of three pages", got, maxPorts)
	}
	if got := strings.Count(body, "spec.externalIPs[0]"); got != maxShown {
		t.Errorf("got %d problems on the page, want %d", got, maxShown)
	}
}

// The page shows a bounded part of one Service with very many endpoints or addresses.
func TestServicesOnThePageAreBounded(t *testing.T) {
	web := service("web", "10.96.0.10")
	balanced := service("balanced", "10.96.0.11")
	balanced.Spec.Type, balanced.Spec.Ports[0].NodePort = v1.ServiceTypeLoadBalancer, 0
	balanced.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.200"}}
	for i := range 200 {
		web.Spec.ExternalIPs = append(web.Spec.ExternalIPs, fmt.Sprintf("203.0.113.%d", i))
		balanced.Spec.LoadBalancerSourceRanges = append(balanced.Spec.LoadBalancerSourceRanges, fmt.Sprintf("198.51.%d.0/24", i))
	}
	tracker := track(web, balanced)
	many := objects.Slice("b", "web", objects.Many(1000, func(i int) string { return fmt.Sprintf("10.245.%d.%d", i/250, i%250) })...)
	many.Ports = objects.SlicePorts("http 8081")
	tracker.UpdateEndpointSlice(many)
	body := get(t, synced(t, tracker), "?protocol=TCP&source=198.51.100.1&interface=eth0&destination=10.96.0.10:80")
	for part, want := range map[string]int{
		"<code>10.24": 2 * maxListed, "and 991 more": 2, // the pool and the verdict
		"<tr><td>": maxListed + 2, "and 192 more": 1, // and two of the other Service
		"198.51.": maxListed + 3, "and 190 more": 1, // and the source of the packet: in both forms, and above the verdict
	} {
		if got := strings.Count(body, part); got != want {
			t.Errorf("%q on the page: got it %d times, want %d", part, got, want)
		}
	}
}

// TestJSON checks the form of the page for programs.
func TestJSON(t *testing.T) {
	web := service("web", "10.96.0.10")
	web.Spec.ExternalIPs = []string{"nonsense"}
	s := snapshot(t, web, service("other", "10.96.0.11"))
	type fields = map[string]any
	port := fields{
		"Namespace": "default", "Name": "web", "Port": "http", "Protocol": "TCP", "Family": "IPv4",
	}
	for name, tc := range map[string]struct {
		held   proxy.Snapshot
		query  string
		status int
		want   fields
	}{
		"nothing": {proxy.Snapshot{}, "", http.StatusOK, fields{"Node": nil, "Generation": 0.0, "Verdict": nil}},
		"packet and nothing": {
			proxy.Snapshot{}, "?destination=10.96.0.10:80", http.StatusBadRequest, fields{"Error": "nothing has been programmed yet"},
		},
		"all":    {s, "", http.StatusOK, fields{"Title": "Mode test", "Total": 2.0, "Pages": 1.0, "Packet": nil, "Problems.0": `Service default/web: spec.externalIPs[0]: "nonsense" is not an IP address`}},
		"filter": {s, "?filter=other", http.StatusOK, fields{"Total": 2.0, "Pages": 1.0, "ServicePorts.0.Name.Name": "other", "ServicePorts.1": "there is no 1"}},
		"why": {s, "?destination=10.96.0.10:80", http.StatusOK, fields{
			"Packet": fields{
				"Protocol": "TCP", "Source": "192.0.2.1:40000", "Destination": "10.96.0.10:80", "FromNode": true, "Interface": "", "ToNode": false,
			},
			"Verdict.Action": "forward", "Verdict.Name": port, "Verdict.Frontend.Kind": "ClusterIP",
			"Verdict.Endpoints":                     []any{fields{"Addr": "10.244.1.11:8080", "Masquerade": false}},
			"ServicePorts.0.Name":                   fields{"Namespace": "default", "Name": "other", "Port": "http", "Protocol": "TCP", "Family": "IPv4"},
			"ServicePorts.1.Name":                   port,
			"ServicePorts.1.Frontends.0.FromInside": fields{"Action": "forward", "Pool": "cluster", "Masquerade": "never"},
			"ServicePorts.1.Cluster.0.NodeName":     "node-1",
		}},
		"bad": {s, "?destination=10.96.0.10:80&source=x", http.StatusBadRequest, fields{"Packet": nil, "Verdict": nil}},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/any"+tc.query, http.NoBody)
			r.Header.Set("Accept", "application/json")
			newPage(tc.held).ServeHTTP(w, r)
			var got any
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != tc.status || w.Header().Get("Content-Type") != "application/json" {
				t.Fatalf("got status %d, header %v, error %v, body %s; want status %d and JSON", w.Code, w.Header(), err, w.Body, tc.status)
			}
			for path, want := range tc.want {
				testenv.Same(t, want, at(got, path), "%s", path)
			}
		})
	}
}

// at returns a part of a JSON value, by a path of names and numbers.
func at(value any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			value = v[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(v) {
				return fmt.Sprintf("there is no %s", name)
			}
			value = v[i]
		}
	}
	return value
}

// Limits are listed apart from problems, each once, in the HTML and in the JSON.
func TestLimits(t *testing.T) {
	limit := func(service, text string) *proxy.Problem {
		return &proxy.Problem{
			Kind: "Service", NamespacedName: types.NamespacedName{Namespace: "default", Name: service},
			Field: "spec.sessionAffinity", Err: errors.New(text),
		}
	}
	sync := proxy.Sync{
		Applied: proxy.NewSnapshot(&proxy.Node{Name: "node-1"}),
		Limits:  []*proxy.Problem{limit("a", "<10> clients"), limit("a", "<10> clients"), limit("b", "20 clients")},
	}
	request := func(accept string) string {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept", accept)
		page := New("Mode test")
		page.Observer(nil).Synced(sync)
		page.ServeHTTP(w, r)
		return w.Body.String()
	}
	body := request("text/html")
	for _, part := range []string{
		"<h2>Served with limits</h2>\n<ul><li>Service default/a: spec.sessionAffinity: &lt;10&gt; clients</li><li>Service default/b: spec.sessionAffinity: 20 clients</li></ul>",
	} {
		if !strings.Contains(body, part) {
			t.Errorf("the page lacks %q:\n%s", part, body)
		}
	}
	if strings.Contains(body, "<h2>Problems</h2>") {
		t.Errorf("limits are shown as problems:\n%s", body)
	}
	var got struct{ Limits, Problems []string }
	testenv.NoError(t, json.Unmarshal([]byte(request("application/json")), &got))
	if len(got.Problems) != 0 || len(got.Limits) != 2 {
		t.Errorf("JSON: got limits %q and problems %q, want two limits and no problems", got.Limits, got.Problems)
	}
}

// The JSON has all entries of a service port, and so fewer service ports if these have very many.
func TestJSONIsBounded(t *testing.T) {
	many := objects.Many(maxEntries/2, func(i int) string { return fmt.Sprintf("10.244.%d.%d:80 U", i>>8, i&255) })
	l := list(proxy.NewSnapshot(&proxy.Node{}, snapshots.Port("a", "", many...), snapshots.Port("b", "", many...), snapshots.Port("c", "", many...), snapshots.Port("d", "", many...)), "", 1)
	if len(l.ServicePorts) != 2 || l.Matches != 4 || l.Pages != 2 {
		t.Errorf("got %d service ports of %d on the first of %d pages, want 2 of 4 on the first of 2", len(l.ServicePorts), l.Matches, l.Pages)
	}
}
