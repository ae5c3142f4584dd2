package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// newPages returns the agent of a command line, and its pages.
func newPages(t *testing.T, file, flags string) (*instance, http.Handler) {
	t.Helper()
	c, out, err := readConfig(t, file, flags)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a := &instance{config: c, mode: nftablesMode, page: inspect.New("Mode nftables")}
	return a, a.pages(prometheus.NewRegistry())
}

// get requests a path from the node, with an Accept header.
func get(t *testing.T, h http.Handler, path, accept string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	r.RemoteAddr, r.Host = "127.0.0.1:1000", "localhost:10249"
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestConfigz checks that the page has the configuration in effect: one that -config reads, and that a
// change of the file changes.
func TestConfigz(t *testing.T) {
	t.Parallel()
	a, pages := newPages(t, header+"clusterCIDR: 10.244.0.0/16\nconntrack: {min: 5}\nfeatureGates: {AllBeta: true}", "-config FILE")
	read := func() (text []byte) {
		t.Helper()
		w := get(t, pages, configzPath, "")
		var got map[string]json.RawMessage
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got) != 1 || w.Header().Get("Content-Type") != "application/json" {
			t.Fatalf("got error %v, %d keys, headers %v, want an object with one key, as JSON", err, len(got), w.Header())
		}
		return got["kubeproxy.config.k8s.io"]
	}
	text := read()
	path := filepath.Join(t.TempDir(), "config.yaml")
	testenv.NoError(t, os.WriteFile(path, text, 0o600))
	c, out, err := readConfig(t, "", "-config "+path)
	if err != nil || out != "" || c.ClusterCIDR != "10.244.0.0/16" || c.Mode != nftablesMode || *c.Conntrack.Min != 5 || len(c.FeatureGates) != 1 {
		t.Errorf("reading %s: got error %v, %s, want the same configuration and the mode that serves", text, err, out)
	}
	next := *a.config
	*next.Conntrack.Min = 6
	a.followed = new(atomic.Pointer[config])
	a.followed.Store(&next)
	if text := string(read()); !strings.Contains(text, `"min":6`) {
		t.Errorf("after a change: got %s, want it", text)
	}
}

// TestFlagz checks the flags, in text and in both versions of the object.
func TestFlagz(t *testing.T) {
	t.Parallel()
	_, pages := newPages(t, "", "-master https://user:secret@192.0.2.1:6443 -v 2 -nodeport-addresses primary,10.0.0.0/8 -feature-gates AllBeta=true,AllAlpha=false -oom-score-adj 5")
	text := get(t, pages, flagzPath, "").Body.String()
	for _, line := range []string{"kube-proxy flagz", "v=2", "nodeport-addresses=primary,10.0.0.0/8", "feature-gates=AllAlpha=false,AllBeta=true", "cleanup=false", "master=https://user:xxxxx@192.0.2.1:6443"} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("got\n%s\nwant also the line %s", text, line)
		}
	}
	if strings.Contains(text, "oom-score-adj") {
		t.Errorf("got\n%s\nwant no flag that is ignored", text)
	}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		w := get(t, pages, flagzPath, "application/json;as=Flagz;g=config.k8s.io;v="+version)
		var got struct {
			Kind, APIVersion string
			Metadata         struct{ Name string }
			Flags            map[string]string
		}
		err := json.Unmarshal(w.Body.Bytes(), &got)
		if err != nil || got.Kind != "Flagz" || got.APIVersion != "config.k8s.io/"+version || got.Metadata.Name != "kube-proxy" || got.Flags["v"] != "2" {
			t.Errorf("%s: got %+v, error %v, want the object", version, got, err)
		}
		if isOld := w.Header().Get("Warning") != ""; isOld != (version == "v1alpha1") {
			t.Errorf("%s: got a warning: %t, want one for v1alpha1 only", version, isOld)
		}
	}
}

// TestStatusz checks the form for each Accept header.
func TestStatusz(t *testing.T) {
	t.Parallel()
	_, pages := newPages(t, "", "")
	const object = "as=Statusz;v=v1beta1;g=config.k8s.io"
	for accept, want := range map[string]string{
		"":           "text/plain; charset=utf-8",
		"text/plain": "text/plain; charset=utf-8",
		"text/html,application/xhtml+xml,*/*;q=0.8":           "text/plain; charset=utf-8",
		"application/json;" + object:                          "application/json",
		"application/yaml; " + object + ", text/plain":        "application/yaml",
		"application/json, text/plain":                        "text/plain; charset=utf-8",
		"application/json":                                    "",
		"application/json;as=Flagz;v=v1beta1;g=config.k8s.io": "",
		"application/json;as=Statusz;v=v1;g=config.k8s.io":    "",
		"application/json;as=Statusz;v=v1beta1;g=apps":        "",
		"text/plain;" + object:                                "",
		";":                                                   "",
	} {
		w := get(t, pages, statuszPath, accept)
		switch got := w.Header().Get("Content-Type"); {
		case want == "" && w.Code != http.StatusNotAcceptable, want != "" && (w.Code != http.StatusOK || got != want):
			t.Errorf("Accept %q: got status %d, %s, want %q, or 406", accept, w.Code, got, want)
		case want == "":
		case strings.HasPrefix(want, "text/plain"):
			if text := w.Body.String(); !strings.Contains(text, "\nUp: 0 hr 00 min 0") || !strings.Contains(text, "\nPaths: /configz /debug /flagz /healthz /metrics /proxyMode /statusz\n") {
				t.Errorf("got\n%s", text)
			}
		default:
			wantStatus(t, w.Body.Bytes())
		}
	}
}

// wantStatus checks that the structured form of statusz has all fields.
func wantStatus(t *testing.T, text []byte) {
	t.Helper()
	var got struct {
		Kind, StartTime, GoVersion, BinaryVersion string
		UptimeSeconds                             *int
		Paths                                     []string
	}
	if err := yaml.Unmarshal(text, &got); err != nil || got.Kind != "Statusz" || got.StartTime == "" || got.GoVersion == "" || got.BinaryVersion == "" || got.UptimeSeconds == nil || len(got.Paths) != 7 {
		t.Errorf("got %+v, error %v, want all fields", got, err)
	}
}

// TestIndex checks that the index names each path that is served.
func TestIndex(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{"-profiling", "-feature-gates ComponentFlagz=false,ComponentStatusz=false"} {
		_, pages := newPages(t, "", flags)
		text := get(t, pages, "/", "").Body.String()
		for _, path := range []string{"/metrics", "/healthz", "/proxyMode", statuszPath, configzPath, flagzPath, "/debug/services", "/debug/pprof/"} {
			want := get(t, pages, path, "").Code == http.StatusOK
			if got := strings.Contains(text, "\n"+path+" "); got != want {
				t.Errorf("flags %s, path %s: served %t, in the index %t", flags, path, want, got)
			}
		}
	}
	_, pages := newPages(t, "", "-feature-gates AllBeta=false")
	for _, path := range []string{flagzPath, statuszPath, "/unknown"} {
		if got := get(t, pages, path, "").Code; got != http.StatusNotFound {
			t.Errorf("%s: got status %d, want 404", path, got)
		}
	}
}

// TestWhoGetsPages checks which pages clients of other nodes, and pages of other sites in a browser on the node, get: pages
// that show neither Services nor how the node is set up.
func TestWhoGetsPages(t *testing.T) {
	t.Parallel()
	a := &instance{config: newConfig("linux"), mode: nftablesMode, page: inspect.New("Mode nftables")}
	a.EnableProfiling = true
	for path, want := range map[string]int{
		"/": http.StatusOK, "/metrics": http.StatusOK, "/healthz": http.StatusOK, "/proxyMode": http.StatusOK, statuszPath: http.StatusOK,
		configzPath: http.StatusForbidden, flagzPath: http.StatusForbidden, "/debug/services": http.StatusForbidden, "/debug/pprof/": http.StatusForbidden,
	} {
		a.wantStatus(t, "192.0.2.7:1000", path, answer{want, ""})
		a.wantStatus(t, "127.0.0.1:1000", path, answer{http.StatusOK, ""})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		r.RemoteAddr, r.Host = "127.0.0.1:1000", "evil.example:10249"
		w := httptest.NewRecorder()
		if a.pages(prometheus.NewRegistry()).ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s by another site's name: got status %d, want %d", path, w.Code, want)
		}
	}
}

// TestWithoutPassword checks that no form of a URL keeps its password.
func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://10.0.0.1:6443": "https://10.0.0.1:6443", "https://admin:secret@10.0.0.1:6443": "https://admin:xxxxx@10.0.0.1:6443",
		"admin:secret@10.0.0.1:6443": "CLASSIFIED", "https://admin:sec%ret@10.0.0.1": "CLASSIFIED", "https://user:secret@ %": "CLASSIFIED",
	} {
		if got := withoutPassword(url); got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}
