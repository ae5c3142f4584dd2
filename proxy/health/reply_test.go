package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// request returns status and body of a response, and checks its header.
func request(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	want := http.Header{"Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"}}
	if w.Code == http.StatusNotFound {
		return w.Code, ""
	}
	testenv.Same(t, want, w.Header(), "%s %s: header", method, path)
	return w.Code, w.Body.String()
}

func TestBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
		s, r := watching(t, Options{NodeEligible: tracker.NodeEligible, Answered: func(path string, status int) {
			calls = append(calls, fmt.Sprintf("%s %d", path, status))
		}})
		want := func(path string, status int, body string) {
			t.Helper()
			gotStatus, got := request(t, s, http.MethodGet, path)
			if gotStatus != status || got != body {
				t.Errorf("%s:\ngot  %d %s\nwant %d %s", path, gotStatus, got, status, body)
			}
		}
		now := func() string { return stamp(time.Now()) }

		want("/livez", 200, `{"lastUpdated":`+now()+`,"currentTime":`+now()+`,"healthy":true}`)
		want("/healthz", 503, `{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":`+now()+`,"nodeEligible":false,"healthy":true}`)
		tracker.UpdateNode(node())
		want("/healthz", 200, `{"lastUpdated":`+now()+`,"currentTime":`+now()+`,"nodeEligible":true,"healthy":true}`)

		updated := now()
		applied(r)
		take(t, r)
		time.Sleep(timeout)
		r.Verified(proxy.Snapshot{}) // The dataplane is right, but a change waits.
		family := `{"lastUpdated":` + updated + `,"healthy":false}`
		want("/healthz", 503, `{"lastUpdated":`+updated+`,"currentTime":`+now()+`,"nodeEligible":true,"healthy":false,"status":{"IPv4":`+family+`,"IPv6":`+family+`}}`)
		want("/livez", 503, `{"lastUpdated":`+updated+`,"currentTime":`+now()+`,"healthy":false,"status":{"IPv4":`+family+`,"IPv6":`+family+`}}`)

		updated = now()
		applied(r)
		time.Sleep(time.Millisecond)
		family = `{"lastUpdated":` + updated + `,"healthy":true}`
		want("/healthz", 200, `{"lastUpdated":`+now()+`,"currentTime":`+now()+`,"nodeEligible":true,"healthy":true,"status":{"IPv4":`+family+`,"IPv6":`+family+`}}`)

		for _, path := range []string{"/", "/healthz/", "/readyz", "/metrics"} {
			want(path, 404, "")
		}
		wantCalls := []string{"/livez 200", "/healthz 503", "/healthz 200", "/healthz 503", "/livez 503", "/healthz 200"}
		testenv.Same(t, wantCalls, calls, "calls of Answered")
		if status, _ := request(t, s, http.MethodPost, "/healthz"); status != 200 {
			t.Errorf("POST /healthz: got status %d, want 200", status)
		}
	})
}

func TestEligible(t *testing.T) {
	other := node(taint("ToBeDeletedByClusterAutoscaler"))
	other.Name = "node-2"
	for _, tc := range []struct {
		name string
		node *v1.Node
		want int
	}{
		{"plain", node(), 200},
		{"another taint", node(taint("dedicated")), 200},
		{"about to be removed", node(taint("dedicated"), taint("ToBeDeletedByClusterAutoscaler")), 503},
		{"being deleted", node(func(n *v1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} }), 503},
		{"unknown", nil, 503},
		{"another node", other, 200},
	} {
		tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
		s, r := watching(t, Options{NodeEligible: tracker.NodeEligible})
		applied(r)
		tracker.UpdateNode(node())
		tracker.UpdateNode(tc.node)
		if got, _ := request(t, s, http.MethodGet, "/healthz"); got != tc.want {
			t.Errorf("%s: /healthz: got status %d, want %d", tc.name, got, tc.want)
		}
		if got, _ := request(t, s, http.MethodGet, "/livez"); got != 200 {
			t.Errorf("%s: /livez: got status %d, want 200", tc.name, got)
		}
		tracker.UpdateNode(node())
		if got, _ := request(t, s, http.MethodGet, "/healthz"); got != 200 {
			t.Errorf("%s, and then plain again: /healthz: got status %d, want 200", tc.name, got)
		}
	}
	s, err := New(Options{})
	testenv.NoError(t, err)
	if got, _ := request(t, s, http.MethodGet, "/healthz"); got != 200 {
		t.Errorf("without a node: got status %d, want 200", got)
	}
	// A Runner goes on while a program finds out.
	var r proxy.Observer
	s, r = watching(t, Options{NodeEligible: func() bool { applied(r); return true }})
	if got, _ := request(t, s, http.MethodGet, "/healthz"); got != 200 {
		t.Errorf("while the Runner applies: got status %d, want 200", got)
	}
}

// Each case ends at the last moment at which the proxy is healthy: a nanosecond later it is
// not.
func TestHowLongHealthy(t *testing.T) {
	one := servicePort("a", v1.IPv4Protocol, 0)
	fails := func(err error, full bool) func(*testing.T, proxy.Observer) {
		return func(_ *testing.T, r proxy.Observer) {
			account := proxy.Sync{Snapshot: proxy.NewSnapshot(nil, one), Full: full, Start: time.Now(), Err: err}
			if refused, isPartial := errors.AsType[proxy.PortErrors](err); isPartial {
				account.Applied, account.Refused = proxy.NewSnapshot(nil), refused
			}
			r.Synced(account)
		}
	}
	verified := func(_ *testing.T, r proxy.Observer) { r.Verified(proxy.NewSnapshot(nil)) }
	done := func(_ *testing.T, r proxy.Observer) { applied(r) }
	type step struct {
		after time.Duration
		do    func(*testing.T, proxy.Observer)
	}
	for _, tc := range []struct {
		name  string
		steps []step
		until time.Duration // since the start; 0 for no end
	}{
		{"no snapshot", nil, 0},
		{"a first snapshot is never programmed", []step{{5 * time.Second, take}}, 65 * time.Second},
		{"two snapshots are never programmed", []step{{0, take}, {40 * time.Second, take}}, timeout},
		{"the first sync fails", []step{{0, take}, {time.Second, fails(io.ErrUnexpectedEOF, true)}}, timeout},
		{"the first sync fails, the second does not", []step{{0, take}, {0, fails(io.ErrUnexpectedEOF, true)}, {time.Second, done}}, 0},
		{"a resync fails", []step{{0, done}, {time.Second, fails(io.ErrUnexpectedEOF, true)}}, 61 * time.Second},
		{"the dataplane is lost", []step{{0, done}, {time.Second, fails(proxy.ErrDataplaneLost, false)}}, 61 * time.Second},
		{"verified long ago", []step{{0, verified}, {20 * time.Second, done}, {20 * time.Second, done}}, timeout},
		{"verified again", []step{{0, verified}, {20 * time.Second, verified}}, 80 * time.Second},
		{"verified while a change waits", []step{{0, take}, {20 * time.Second, verified}}, timeout},
		{"all ports fail one by one", []step{{0, take}, {0, fails(proxy.PortErrors{one.Name: io.ErrNoProgress}, true)}}, timeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, r := watching(t, Options{})
			start := time.Now()
			for _, step := range tc.steps {
				time.Sleep(step.after)
				step.do(t, r)
			}
			until := tc.until
			if until == 0 {
				until = 1000 * time.Hour
			}
			time.Sleep(time.Until(start.Add(until - 1)))
			if got, _ := request(t, s, http.MethodGet, "/livez"); got != 200 {
				t.Errorf("%s: just before %v: got status %d, want 200", tc.name, until, got)
			}
			time.Sleep(time.Nanosecond)
			if got, _ := request(t, s, http.MethodGet, "/livez"); got != 503 && tc.until > 0 {
				t.Errorf("%s: at %v: got status %d, want 503", tc.name, until, got)
			}
		})
	}
}

func TestSomePortsFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := watching(t, Options{})
		take(t, r)
		a, b := servicePort("a", v1.IPv4Protocol, 0), servicePort("b", v1.IPv4Protocol, 0)
		partial := proxy.PortErrors{a.Name: io.ErrNoProgress}
		r.Synced(proxy.Sync{Snapshot: proxy.NewSnapshot(nil, a, b), Applied: proxy.NewSnapshot(nil, b), Err: errors.Join(partial), Refused: partial})
		time.Sleep(timeout)
		if got, body := request(t, s, http.MethodGet, "/livez"); got != 200 {
			t.Errorf("one of two ports fails: got %d %s, want 200", got, body)
		}
	})
}

// Ports of removed Services that the dataplane keeps against its order are not all ports.
func TestRemovalsFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := watching(t, Options{})
		a, b := servicePort("a", v1.IPv4Protocol, 0), servicePort("b", v1.IPv4Protocol, 0)
		take(t, r)
		partial := proxy.PortErrors{portName("c", v1.IPv4Protocol): io.ErrNoProgress, portName("d", v1.IPv4Protocol): io.ErrNoProgress}
		x := proxy.NewSnapshot(nil, a, b)
		r.Synced(proxy.Sync{Snapshot: x, Applied: x, Err: partial, Refused: partial})
		time.Sleep(timeout)
		if got, body := request(t, s, http.MethodGet, "/livez"); got != 200 {
			t.Errorf("both ports are served: got %d %s, want 200", got, body)
		}
		take(t, r)
		none := proxy.NewSnapshot(nil)
		r.Synced(proxy.Sync{Snapshot: none, Applied: none, Start: time.Now(), Err: partial, Refused: partial})
		time.Sleep(timeout)
		if got, body := request(t, s, http.MethodGet, "/livez"); got != 503 {
			t.Errorf("nothing but removals, and all fail: got %d %s, want 503", got, body)
		}
	})
}

func TestBegin(t *testing.T) {
	for _, tc := range []struct {
		timeout, resync time.Duration
		ok              bool
	}{
		{0, 0, false},
		{time.Minute, 0, false},
		{time.Minute, time.Minute, false},
		{time.Minute, 59 * time.Second, true},
		{0, time.Second, true},
	} {
		s, err := New(Options{Timeout: tc.timeout})
		testenv.NoError(t, err)
		err = s.begin(&proxy.Runner{ResyncInterval: tc.resync})
		if (err == nil) != tc.ok {
			t.Errorf("timeout %v, resync %v: got error %v, want one: %v", tc.timeout, tc.resync, err, !tc.ok)
		}
		if err != nil && !strings.Contains(err.Error(), "ResyncInterval") {
			t.Errorf("timeout %v, resync %v: got error %q, want it to name ResyncInterval", tc.timeout, tc.resync, err)
		}
	}
}

// Options that cannot work fail in New, with the field and its value.
func TestInvalidOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Timeout: -1}, "health: Options.Timeout is -1ns, and must not be negative"},
		{Options{Address: "10256"}, `health: Options.Address is "10256": want host:port`},
		{Options{Address: "10.0.0.300:80"}, `health: Options.Address is "10.0.0.300:80": "10.0.0.300" is neither an IP address nor the name of a host`},
		{Options{Address: "[fd00::x]:80"}, `health: Options.Address is "[fd00::x]:80": "fd00::x" is neither an IP address nor the name of a host`},
		{Options{Address: "a b:80"}, `health: Options.Address is "a b:80": "a b" is neither an IP address nor the name of a host`},
		{Options{Pages: map[string]http.Handler{":http2": nil}}, `health: Options.Pages has ":http2": "http2" is not the number of a port`},
		{Options{Pages: map[string]http.Handler{":65536": nil}}, `health: Options.Pages has ":65536": "65536" is not the number of a port`},
	} {
		if _, err := New(c.o); err == nil || err.Error() != c.want {
			t.Errorf("%+v: got error %v, want %s", c.o, err, c.want)
		}
	}
	for _, address := range []string{"", ":0", "0.0.0.0:10256", "[::]:10256", "[fe80::1%eth0]:80", "localhost:80", "Node-1.example:80"} {
		if _, err := New(Options{Address: address}); err != nil {
			t.Errorf("%q: got error %v, want none", address, err)
		}
	}
}

// Pages are served together with the health checks, and retried while their address is in use.
func TestPages(t *testing.T) {
	ports := freePorts(t, 2)
	free, used := at("127.0.0.1", ports[0]), at("127.0.0.1", ports[1])
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", used)
	testenv.NoError(t, err)
	page := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	}
	w := run(t, Options{Pages: map[string]http.Handler{free: page("one"), used: page("two")}})
	if got := next(t, w.reports); !strings.HasPrefix(got, used+": listen tcp") {
		t.Errorf("got report %q, want one of the address in use", got)
	}
	w.wantEvents(t, "listen "+free)
	if got := get(t, free); !strings.HasSuffix(got, "\none") {
		t.Errorf("got page %q, want \"one\"", got)
	}
	testenv.NoError(t, other.Close())
	w.wantEvents(t, "listen "+used)
	if got, want := next(t, w.reports), used+": <nil>"; got != want {
		t.Errorf("got report %q, want %q", got, want)
	}
	if got := get(t, used); !strings.HasSuffix(got, "\ntwo") {
		t.Errorf("got page %q, want \"two\"", got)
	}
	w.stop()
	w.wantEvents(t, "close "+free, "close "+used)
}

// A page without a handler is not found; http.DefaultServeMux, where any package may have
// registered profiles, is not served.
func TestPageWithoutHandler(t *testing.T) {
	before := http.DefaultServeMux
	defer func() { http.DefaultServeMux = before }()
	http.DefaultServeMux = http.NewServeMux()
	http.HandleFunc("/any/path", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") })
	address := at("127.0.0.1", freePorts(t, 1)[0])
	w := run(t, Options{Pages: map[string]http.Handler{address: nil}})
	w.wantEvents(t, "listen "+address)
	if got := get(t, address); !strings.HasPrefix(got, "404") {
		t.Errorf("got page %q, want 404", got)
	}
	w.stop()
	w.wantEvents(t, "close "+address)
}

// Servers limit the time of connections and the size of headers.
func TestLimitsOfServers(t *testing.T) {
	s := newCheckServers(&net.ListenConfig{}, nil, descriptors())
	defer s.close()
	s.set(types.NamespacedName{}, http.NotFoundHandler(), []hostPort{{"tcp", "127.0.0.1:0"}})
	s.open(context.WithoutCancel(t.Context()))
	for _, d := range s.byName[types.NamespacedName{}].sockets {
		got := [...]time.Duration{d.ReadHeaderTimeout, d.ReadTimeout, d.WriteTimeout, d.IdleTimeout}
		if want := [...]time.Duration{5 * time.Second, 10 * time.Second, 10 * time.Second, time.Minute}; got != want || d.MaxHeaderBytes != 16<<10 {
			t.Errorf("got timeouts %v and %d bytes of headers, want %v and 16 KiB", got, d.MaxHeaderBytes, want)
		}
		return
	}
	t.Error("got no socket, want one")
}

func TestReportsAreLogged(t *testing.T) {
	var log []string
	s, err := New(Options{Logger: funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{})})
	testenv.NoError(t, err)
	s.report(types.NamespacedName{}, errors.New("in use"))
	s.report(types.NamespacedName{Namespace: "ns", Name: "a"}, nil)
	want := []string{`"msg"="HTTP server not listening" "error"="in use" "at"="healthz"`, `"level"=0 "msg"="HTTP server problem resolved" "at"="ns/a"`}
	if !slices.Equal(log, want) {
		t.Errorf("got log %q, want %q", log, want)
	}
}
