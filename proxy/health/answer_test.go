package health

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/proxy"
)

// ask gives status and body of an answer, and checks what all have in common.
func ask(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	want := http.Header{"Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"}}
	if w.Code == http.StatusNotFound {
		return w.Code, ""
	}
	if diff := cmp.Diff(want, w.Header()); diff != "" {
		t.Errorf("%s %s: header (-want +got):\n%s", method, path, diff)
	}
	return w.Code, w.Body.String()
}

func TestBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answered []string
		s, r := watching(t, Options{NodeName: "node-1", Answered: func(path string, status int) {
			answered = append(answered, fmt.Sprintf("%s %d", path, status))
		}})
		want := func(path string, status int, body string) {
			t.Helper()
			gotStatus, got := ask(t, s, http.MethodGet, path)
			if gotStatus != status || got != body {
				t.Errorf("%s:\ngot  %d %s\nwant %d %s", path, gotStatus, got, status, body)
			}
		}
		now := func() string { return stamp(time.Now()) }

		want("/livez", 200, `{"lastUpdated":`+now()+`,"currentTime":`+now()+`,"healthy":true}`)
		want("/healthz", 503, `{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":`+now()+`,"nodeEligible":false,"healthy":true}`)
		s.UpdateNode(node())
		want("/healthz", 200, `{"lastUpdated":`+now()+`,"currentTime":`+now()+`,"nodeEligible":true,"healthy":true}`)

		updated := now()
		applied(r)
		take(t, r)
		time.Sleep(timeout)
		r.Verified(proxy.Snapshot{}) // What there is is right, but not new enough.
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
		wantAnswered := []string{"/livez 200", "/healthz 503", "/healthz 200", "/healthz 503", "/livez 503", "/healthz 200"}
		if diff := cmp.Diff(wantAnswered, answered); diff != "" {
			t.Errorf("Answered was told (-want +got):\n%s", diff)
		}
		if status, _ := ask(t, s, http.MethodPost, "/healthz"); status != 200 {
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
		{"gone", nil, 503},
		{"another node", other, 200},
	} {
		s, r := watching(t, Options{NodeName: "node-1"})
		applied(r)
		s.UpdateNode(node())
		s.UpdateNode(tc.node)
		if got, _ := ask(t, s, http.MethodGet, "/healthz"); got != tc.want {
			t.Errorf("%s: /healthz: got status %d, want %d", tc.name, got, tc.want)
		}
		if got, _ := ask(t, s, http.MethodGet, "/livez"); got != 200 {
			t.Errorf("%s: /livez: got status %d, want 200", tc.name, got)
		}
		s.UpdateNode(node())
		if got, _ := ask(t, s, http.MethodGet, "/healthz"); got != 200 {
			t.Errorf("%s, and then plain again: /healthz: got status %d, want 200", tc.name, got)
		}
	}
	s := New(Options{})
	s.UpdateNode(nil)
	if got, _ := ask(t, s, http.MethodGet, "/healthz"); got != 200 {
		t.Errorf("without a node: got status %d, want 200", got)
	}
}

// Each case ends in a moment at which the proxy counts as healthy for the last
// time: a nanosecond later it does not.
func TestHowLongHealthy(t *testing.T) {
	one := servicePort("a", v1.IPv4Protocol, 0)
	fails := func(err error, full bool) func(*testing.T, *proxy.Runner) {
		return func(_ *testing.T, r *proxy.Runner) {
			account := proxy.Sync{Snapshot: proxy.NewSnapshot(nil, one), Full: full, Start: time.Now(), Err: err}
			if _, isPartial := errors.AsType[proxy.PortErrors](err); isPartial {
				account.Applied = proxy.NewSnapshot(nil)
			}
			r.Observe(account)
		}
	}
	verified := func(_ *testing.T, r *proxy.Runner) { r.Verified(proxy.NewSnapshot(nil)) }
	done := func(_ *testing.T, r *proxy.Runner) { applied(r) }
	type step struct {
		after time.Duration
		do    func(*testing.T, *proxy.Runner)
	}
	for _, tc := range []struct {
		name  string
		steps []step
		until time.Duration // since the start; 0 for ever
	}{
		{"nothing heard", nil, 0},
		{"a first snapshot is never programmed", []step{{5 * time.Second, take}}, 65 * time.Second},
		{"nor is it tried in time", []step{{0, take}, {40 * time.Second, take}}, timeout},
		{"it fails", []step{{0, take}, {time.Second, fails(io.ErrUnexpectedEOF, true)}}, timeout},
		{"it fails and then it works", []step{{0, take}, {0, fails(io.ErrUnexpectedEOF, true)}, {time.Second, done}}, 0},
		{"a resync fails", []step{{0, done}, {time.Second, fails(io.ErrUnexpectedEOF, true)}}, 61 * time.Second},
		{"the dataplane is lost", []step{{0, done}, {time.Second, fails(proxy.ErrDataplaneLost, false)}}, 61 * time.Second},
		{"verified long ago", []step{{0, verified}, {20 * time.Second, done}, {20 * time.Second, done}}, timeout},
		{"verified again", []step{{0, verified}, {20 * time.Second, verified}}, 80 * time.Second},
		{"verified, yet something waits", []step{{0, take}, {20 * time.Second, verified}}, timeout},
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
			if got, _ := ask(t, s, http.MethodGet, "/livez"); got != 200 {
				t.Errorf("%s: just before %v: got status %d, want 200", tc.name, until, got)
			}
			time.Sleep(time.Nanosecond)
			if got, _ := ask(t, s, http.MethodGet, "/livez"); got != 503 && tc.until > 0 {
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
		r.Observe(proxy.Sync{Snapshot: proxy.NewSnapshot(nil, a, b), Applied: proxy.NewSnapshot(nil, b), Err: errors.Join(partial)})
		time.Sleep(timeout)
		if got, body := ask(t, s, http.MethodGet, "/livez"); got != 200 {
			t.Errorf("one of two ports fails: got %d %s, want 200", got, body)
		}
	})
}

func TestWatch(t *testing.T) {
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
		err := New(Options{Timeout: tc.timeout}).Watch(&proxy.Runner{ResyncInterval: tc.resync})
		if (err == nil) != tc.ok {
			t.Errorf("timeout %v, resync %v: got error %v, want one: %v", tc.timeout, tc.resync, err, !tc.ok)
		}
		if err != nil && !strings.Contains(err.Error(), "ResyncInterval") {
			t.Errorf("timeout %v, resync %v: got error %q, want it to name ResyncInterval", tc.timeout, tc.resync, err)
		}
	}
	observed, verified := 0, 0
	r := &proxy.Runner{
		ResyncInterval: time.Minute,
		Observe:        func(proxy.Sync) { observed++ },
		Verified:       func(proxy.Snapshot) { verified++ },
	}
	if err := New(Options{}).Watch(r); err != nil {
		t.Fatal(err)
	}
	applied(r)
	r.Verified(proxy.Snapshot{})
	if observed != 1 || verified != 1 {
		t.Errorf("those who observed before: called %d and %d times, want once each", observed, verified)
	}
}

// heard is a tracker that notes what it hears of the Node.
type heard struct {
	proxy.ServiceChangeTracker
	nodes []*v1.Node
}

func (h *heard) UpdateNode(n *v1.Node) { h.nodes = append(h.nodes, n) }

// TestTrackerTellsBoth wants that both hear of the Node, also that there is none.
func TestTrackerTellsBoth(t *testing.T) {
	s, inner := New(Options{NodeName: "node-1"}), &heard{}
	tracker := s.Tracker(inner)
	for _, n := range []*v1.Node{node(), nil} {
		tracker.UpdateNode(n)
		if s.eligible != (n != nil) {
			t.Errorf("after the Node was %v the server takes it for eligible: %t", n, s.eligible)
		}
	}
	if len(inner.nodes) != 2 || inner.nodes[0] == nil || inner.nodes[1] != nil {
		t.Errorf("the tracker heard of %v, wanted a Node and then none", inner.nodes)
	}
}
