package inspect

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

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
