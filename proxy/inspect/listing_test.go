package inspect

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// TestFilter checks what people search service ports by.
func TestFilter(t *testing.T) {
	web := clusterPort("default/Web:http", "10.96.0.10:80")
	web.Cluster = snapshots.Endpoints("10.244.1.11:8080 U")
	web.Draining = snapshots.Endpoints("10.244.1.12:8080 U")
	s := proxy.NewSnapshot(&proxy.Node{}, web, clusterPort("default/six", "[fd00::10]:443"), clusterPort("other/db80", "10.96.1.10:5432"))
	for text, want := range map[string]string{
		"": "web six db80", "WEB": "web", "default/": "web six", "ipv6": "six", "default/web:http": "web",
		"10.96.0.10:80": "web", "10.96.": "web db80", "[fd00::10]": "six", "10.244.1.11": "web", "10.244.1.12:8080": "web", ":5432": "db80",
		"80":    "web db80", // a port, and a part of a name
		"99999": "",
	} {
		var got []string
		for _, p := range list(s, text, 1).ServicePorts {
			got = append(got, strings.ToLower(p.Name.Name))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: got %v, want %s", text, got, want)
		}
	}
}

// many returns a snapshot of Services with ten endpoints each.
func many(n int) proxy.Snapshot {
	return proxy.NewSnapshot(&proxy.Node{Name: "node-1"}, objects.Many(n, func(i int) *proxy.ServicePort {
		p := clusterPort(fmt.Sprintf("default/service-%05d:http", i), fmt.Sprintf("10.%d.%d.1:80", 100+i/256, i%256))
		p.Cluster = snapshots.Endpoints(objects.Many(10, func(j int) string { return fmt.Sprintf("11.%d.%d.%d:8080 U", i/256, i%256, j) })...)
		return p
	})...)
}

// TestMasqueradeInWords checks how the list says whose addresses are replaced.
func TestMasqueradeInWords(t *testing.T) {
	for m, want := range map[proxy.Masquerade]string{
		proxy.MasqueradeNever: " to local pool<", proxy.MasqueradeNonPods: " to local pool, masqueraded unless from a pod<", proxy.MasqueradeAlways: " to local pool, masqueraded<",
	} {
		p := clusterPort("default/web", "10.96.0.10:80")
		p.Frontends[0].FromOutside = proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal, Masquerade: m}
		if body := get(t, proxy.NewSnapshot(&proxy.Node{}, p), ""); !strings.Contains(body, forward+want) {
			t.Errorf("%s: the page lacks %q:\n%s", m, want, body)
		}
	}
}

// TestPages checks that each service port is on one page of the list.
func TestPages(t *testing.T) {
	for _, n := range []int{0, 1, maxPorts, maxPorts + 1, 3 * maxPorts} {
		s, seen, pages := many(n), 0, max(1, (n+maxPorts-1)/maxPorts)
		for page := 1; page <= pages; page++ {
			l := list(s, "", page)
			if l.Page != page || l.Pages != pages || l.Matches != n || l.Total != n {
				t.Errorf("%d service ports, page %d: got page %d of %d with %d matches of %d, want page %d of %d", n, page, l.Page, l.Pages, l.Matches, l.Total, page, pages)
			}
			for _, p := range l.ServicePorts {
				if want := fmt.Sprintf("service-%05d", seen); p.Name.Name != want {
					t.Fatalf("%d service ports, page %d: got %s, want %s", n, page, p.Name.Name, want)
				}
				seen++
			}
		}
		if seen != n {
			t.Errorf("got %d service ports on all pages, want %d", seen, n)
		}
	}
}

// TestLocalOnly checks which requests reach a page that is for clients on the node.
func TestLocalOnly(t *testing.T) {
	h := LocalOnly(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), "node-1.Example", "alias")
	const local = "127.0.0.1:1000"
	for _, c := range []struct {
		from, host, header, value string
		want                      int
	}{
		{local, "127.0.0.1:80", "", "", http.StatusNoContent},
		{"[::1]:1000", "[::1]:80", "", "", http.StatusNoContent},
		{"[::ffff:127.0.0.1]:1", "localhost", "", "", http.StatusNoContent},
		{local, "NODE-1.example.:80", "", "", http.StatusNoContent},
		{local, "alias", "Sec-Fetch-Site", "same-origin", http.StatusNoContent},
		{local, "alias", "Origin", "http://alias", http.StatusNoContent},
		{"192.0.2.1:1000", "localhost", "", "", http.StatusForbidden},
		{"nonsense", "localhost", "", "", http.StatusForbidden},
		{local, "evil.example", "", "", http.StatusForbidden},
		{local, "", "", "", http.StatusForbidden},
		{local, "alias", "Sec-Fetch-Site", "cross-site", http.StatusForbidden},
		{local, "alias", "Origin", "http://evil.example", http.StatusForbidden},
		{local, "alias", "Origin", "null", http.StatusForbidden},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.RemoteAddr, r.Host = c.from, c.host
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("client %s, host %q, %s %q: got status %d and %s, want %d", c.from, c.host, c.header, c.value, w.Code, w.Body, c.want)
		}
	}
}
