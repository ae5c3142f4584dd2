package kubewatch

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func fill(s *apiServer) {
	s.put("services", service("a", "10.96.0.1"))
	s.put("services", service("b", "10.96.0.2"))
	s.put("endpointslices", slice("a-1", "10.0.0.1"))
	s.put("nodes", objects.Node("n1", "east"))
	s.put("servicecidrs", cidr("kubernetes", "10.96.0.0/16", "fd00:96::/112"))
}

// The handler receives the same objects from lists and from streamed lists, also after the
// connection was lost.
func TestWatcher(t *testing.T) {
	for name, streams := range map[string]bool{"lists": false, "streamed lists": true} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testWatcher(t, streams) }) })
	}
}

func testWatcher(t *testing.T, streams bool) {
	t.Helper()
	server, client := newAPIServer(t, streams)
	fill(server)
	h := newRecorder()
	start(t, &Watcher{Client: client, Handler: h, NodeName: "n1", Report: func(err error) { t.Errorf("reported: %v", err) }})
	h.until(t, "the start", func(s *state) bool { return s.synced == 1 && len(s.cidrs) == 2 })
	if h.get().early != 4 {
		t.Errorf("at Synced: got %d objects, want 4", h.get().early)
	}

	server.put("services", service("a", "10.96.0.9"))
	server.remove("services", "b")
	server.put("nodes", objects.Node("n1", "west"))
	server.put("servicecidrs", cidr("more", "10.97.0.0/16", "10.96.0.0/16"))
	h.until(t, "changes", func(s *state) bool {
		return s.services["a"] == "10.96.0.9" && len(s.services) == 1 && s.zone == "west" && len(s.cidrs) == 3
	})

	server.bookmark()
	server.disconnect()
	server.put("services", service("c", "10.96.0.3"))
	h.until(t, "a change after a disconnect", func(s *state) bool { return s.services["c"] != "" })

	// The API server has no events of these changes.
	before := h.get().removals
	server.forget(func() {
		delete(server.objects["services"], "c")
		delete(server.objects["endpointslices"], "a-1")
		delete(server.objects["servicecidrs"], "kubernetes")
		delete(server.objects["nodes"], "n1")
		server.store("endpointslices", slice("a-2", "10.0.0.2"))
	})
	h.until(t, "a list after 410 Gone", func(s *state) bool {
		_, isThere := s.services["c"]
		return !isThere && len(s.slices) == 1 && s.slices["a-2"] == "10.0.0.2" && len(s.cidrs) == 2 && s.zone == ""
	})
	if got := h.get().removals - before; got != 3 {
		t.Errorf("got %d removals, want 3", got)
	}
	if h.get().synced != 1 {
		t.Errorf("Synced was called %d times, want once", h.get().synced)
	}
}

// While the API server is away, nothing is removed, and one error is reported. Five seconds after it has come back,
// the objects that changed meanwhile have arrived.
func TestServerUnreachable(t *testing.T) {
	for name, setAway := range map[string]func(*apiServer, bool){"connections": (*apiServer).setRefusing, "requests": (*apiServer).setDown} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testUnreachable(t, setAway) }) })
	}
}

func testUnreachable(t *testing.T, setAway func(*apiServer, bool)) {
	t.Helper()
	server, client := newAPIServer(t, true)
	fill(server)
	setAway(server, true)
	h := newRecorder()
	var reports, lines []string
	logger := funcr.New(func(_, text string) {
		if strings.Contains(text, "answers again") {
			h.note(func(*state) { lines = append(lines, text) })
		}
	}, funcr.Options{})
	report := func(err error) { h.note(func(*state) { reports = append(reports, err.Error()) }) }
	start(t, &Watcher{Client: client, Handler: h, NodeName: "n1", Logger: logger, Report: report})
	time.Sleep(10 * time.Minute)
	if h.get().synced != 0 {
		t.Error("Synced was called before the first list")
	}
	comesBack := func() {
		t.Helper()
		setAway(server, false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
	}
	if comesBack(); h.get().synced != 1 {
		t.Fatal("Synced was not called within 5 s after the API server came back")
	}
	setAway(server, true)
	server.disconnect()
	server.put("services", service("c", "10.96.0.3"))
	time.Sleep(10 * time.Minute)
	comesBack()
	if got := h.get(); got.removals != 0 || len(got.services) != 3 {
		t.Errorf("5 s after the outage: got %d removals and Services %v, want none removed and a new one", got.removals, got.services)
	}
	if len(reports) != 2 || strings.Contains(reports[0], "?") || !strings.Contains(reports[0], "kubewatch: watch *v1.") {
		t.Errorf("reports of two outages: got %q, want one of each, without the query", reports)
	}
	if len(lines) != 2 || !strings.Contains(lines[1], `"after"="10m`) && !strings.Contains(lines[1], `"after"="9m59.`) {
		t.Errorf("log: got %q, want two lines that the API server answers again", lines)
	}
}

func TestSelectors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := newAPIServer(t, true)
		h := newRecorder()
		start(t, &Watcher{Client: client, Handler: h, NodeName: "n1"})
		h.until(t, "the start", func(s *state) bool { return s.synced == 1 })
		got := map[string]string{}
		server.mu.Lock()
		for _, r := range server.requests {
			q := r.URL.Query()
			got[r.URL.Path] = q.Get("labelSelector") + " " + q.Get("fieldSelector")
			if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf") || !strings.Contains(accept, ",application/json") {
				t.Errorf("%s: got Accept %q, want protobuf first, and JSON for servers that lack it", r.URL.Path, accept)
			}
		}
		server.mu.Unlock()
		want := map[string]string{
			"/api/v1/services": " spec.clusterIP!=None",
			"/api/v1/nodes":    " metadata.name=n1",
			"/apis/discovery.k8s.io/v1/endpointslices": "!service.kubernetes.io/headless ",
			"/apis/networking.k8s.io/v1/servicecidrs":  " ",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("selectors (-want +got):\n%s", diff)
		}
	})
}

// The fake clientset of client-go has watches of its own.
func TestFakeClientset(t *testing.T) {
	client := FakeClient(service("a", "10.96.0.1"), slice("a-1", "10.0.0.1"), objects.Node("n1", "east"))
	h := newRecorder()
	start(t, &Watcher{Client: client, Handler: h, NodeName: "n1"})
	h.until(t, "the start", func(s *state) bool { return s.synced == 1 && s.early == 3 })
	ctx := t.Context()
	if _, err := client.CoreV1().Services("test").Create(ctx, service("b", "10.96.0.2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.until(t, "a Service", func(s *state) bool { return s.services["b"] == "10.96.0.2" })
	testenv.NoError(t, client.CoreV1().Services("test").Delete(ctx, "a", metav1.DeleteOptions{}))
	h.until(t, "no Service", func(s *state) bool { return len(s.services) == 1 })
}

// Synced waits for the service ranges: without them, the first sync after a restart would
// remove what drops traffic to unused ClusterIPs, and the next one add it again. It does not
// wait for API servers that lack ServiceCIDRs or forbid to list them.
func TestSyncedWaitsForRanges(t *testing.T) {
	for name, refusal := range map[string]error{
		"served":    nil,
		"unknown":   apierrors.NewNotFound(networkingv1.Resource("servicecidrs"), ""),
		"forbidden": apierrors.NewForbidden(networkingv1.Resource("servicecidrs"), "", nil),
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testSyncedWaitsForRanges(t, refusal) }) })
	}
}

func testSyncedWaitsForRanges(t *testing.T, refusal error) {
	t.Helper()
	client := FakeClient(service("a", "10.96.0.1"), cidr("kubernetes", "10.96.0.0/16"))
	var requests atomic.Int64
	client.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refusal == nil && requests.Add(1) < 20 {
			return true, nil, apierrors.NewServiceUnavailable("later")
		}
		return refusal != nil, nil, refusal
	})
	h := newRecorder()
	start(t, &Watcher{Client: client, Handler: h})
	h.until(t, "the start", func(s *state) bool { return s.synced == 1 })
	if n := h.get().earlyRanges; n != 1 && refusal == nil {
		t.Errorf("at Synced: got %d ranges, want 1", n)
	}
}

func TestBadWatcher(t *testing.T) {
	if err := (&Watcher{}).Run(t.Context()); err == nil {
		t.Error("Run without Client and Handler: no error, want one")
	}
}

func TestStrip(t *testing.T) {
	s := slice("a", "10.0.0.1")
	host := "pod"
	s.Endpoints[0].Hostname = &host
	s.Annotations = map[string]string{"a": "x", "kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 100)}
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	got, err := strip(s)
	testenv.NoError(t, err)
	want := slice("a", "10.0.0.1")
	want.Annotations = map[string]string{"a": "x"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stripped (-want +got):\n%s", diff)
	}
}

func TestRanges(t *testing.T) {
	h := newRecorder()
	calls := 0
	r := newRanges(func(all []netip.Prefix) {
		calls++
		h.UpdateServiceCIDRs(all)
	})
	r.update(cidr("a", "10.96.3.4/16", "nonsense"))
	if want := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}; !slices.Equal(h.get().cidrs, want) {
		t.Errorf("got ranges %v, want %v: a range that does not parse is skipped", h.get().cidrs, want)
	}
	r.update(cidr("a", "10.96.0.0/16"))
	r.update(cidr("b", "10.96.0.0/16", "fd00::/112"))
	if calls != 2 {
		t.Errorf("got %d calls of the handler, want 2: one update changed nothing", calls)
	}
	r.remove(nameOf(cidr("a")))
	want := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/112")}
	if !slices.Equal(h.get().cidrs, want) {
		t.Errorf("got ranges %v, want %v: a range of another object stays", h.get().cidrs, want)
	}
	if got, want := fmt.Sprint(len(r.objects)), "1"; got != want {
		t.Errorf("got %s objects, want %s", got, want)
	}
}

// A second Run has a start of its own, and serves another Handler.
func TestRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Watcher{Client: FakeClient(service("a", "10.96.0.1"), cidr("kubernetes", "10.96.0.0/16"))}
		former := newRecorder()
		for i, h := range []*recorder{former, newRecorder(), former} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			s.Handler = h
			before := h.get().synced
			go func() { done <- s.Run(ctx) }()
			synctest.Wait()
			if got := h.get(); got.synced != before+1 || got.services["a"] == "" || len(got.cidrs) != 1 {
				t.Errorf("run %d: the Handler has %+v, want Synced once more, a Service and a range", i, got)
			}
			cancel()
			testenv.NoError(t, <-done)
		}
		testenv.NoError(t, s.Client.NetworkingV1().ServiceCIDRs().Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}))
		start(t, s)
		synctest.Wait()
		if got := former.get(); len(got.cidrs) != 0 {
			t.Errorf("after the range went between two Runs: got %v, want none", got.cidrs)
		}
	})
}
