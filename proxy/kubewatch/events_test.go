package kubewatch

import (
	"context"
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// register adds the handlers of e to informers, and returns what tells when they have synced.
func register(t *testing.T, e *Events, f informers.SharedInformerFactory) (synced []cache.InformerSynced) {
	t.Helper()
	for _, c := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{f.Core().V1().Services().Informer(), e.Services()},
		{f.Discovery().V1().EndpointSlices().Informer(), e.EndpointSlices()},
		{f.Core().V1().Nodes().Informer(), e.Nodes()},
	} {
		registration, err := c.informer.AddEventHandler(c.handler)
		testenv.NoError(t, err)
		synced = append(synced, registration.HasSynced)
	}
	return synced
}

// TestEventsOfInformers checks that a handler gets what exists before Synced, and changes and
// deletions later.
func TestEventsOfInformers(t *testing.T) {
	ctx := t.Context()
	client := FakeClient(service("web", "10.96.0.1"), service("headless", v1.ClusterIPNone),
		slice("web-1", "10.0.0.1"), objects.Node("n1", "a"), objects.Node("n2", "b"))
	r := newRecorder()
	e := &Events{Handler: r, NodeName: "n1", Report: func(err error) { t.Error(err) }}
	factory := informers.NewSharedInformerFactory(client, 0)
	synced := register(t, e, factory)
	stop, cancel := context.WithCancel(ctx)
	factory.Start(stop.Done())
	defer factory.Shutdown()
	defer cancel()
	testenv.NoError(t, e.AwaitSynced(ctx, synced...))
	if s := r.get(); s.synced != 1 || s.early != 3 || s.zone != "a" {
		t.Errorf("at Synced: got %+v, want one call, after web, web-1 and n1", s)
	}
	services := client.CoreV1().Services("test")
	other := service("web", "10.96.0.2")
	other.Labels = map[string]string{labelProxyName: "other"}
	for _, step := range []struct {
		what string
		do   func() error
		want func(*state) bool
	}{
		{"a changed Service", func() error {
			_, err := services.Update(ctx, service("web", "10.96.0.2"), metav1.UpdateOptions{})
			return err
		}, func(s *state) bool { return s.services["web"] == "10.96.0.2" }},
		{"a Service for another proxy", func() error {
			_, err := services.Update(ctx, other, metav1.UpdateOptions{})
			return err
		}, func(s *state) bool { return len(s.services) == 0 }},
		{"a deleted EndpointSlice", func() error {
			return client.DiscoveryV1().EndpointSlices("test").Delete(ctx, "web-1", metav1.DeleteOptions{})
		}, func(s *state) bool { return len(s.slices) == 0 }},
		{"a deleted Node", func() error {
			return client.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{})
		}, func(s *state) bool { return s.zone == "" }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		r.until(t, step.what, step.want)
	}
}

// TestEventsSelect checks which objects the handlers pass on and remove, one event at a time.
func TestEventsSelect(t *testing.T) {
	labelled := func(name string) *v1.Service {
		s := service("web", "10.96.0.1")
		s.Labels = map[string]string{labelProxyName: name}
		return s
	}
	headless := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{v1.IsHeadlessService: ""}}}
	web, key := service("web", "10.96.0.1"), "test/web"
	for _, c := range []struct {
		name              string
		proxy             string
		do                func(e *Events)
		updates, removals int
		report            string
	}{
		{name: "add", do: func(e *Events) { e.Services().OnAdd(web, true) }, updates: 1},
		{name: "headless", do: func(e *Events) { e.Services().OnAdd(service("web", v1.ClusterIPNone), true) }},
		{name: "other proxy", do: func(e *Events) { e.Services().OnAdd(labelled("other"), false) }},
		{name: "empty label", do: func(e *Events) { e.Services().OnAdd(labelled(""), false) }},
		{name: "own label", proxy: "own", do: func(e *Events) { e.Services().OnAdd(labelled("own"), false) }, updates: 1},
		{name: "own label missing", proxy: "own", do: func(e *Events) { e.Services().OnAdd(web, false) }},
		{name: "resync", do: func(e *Events) { e.Services().OnUpdate(web, web) }},
		{name: "never selected", do: func(e *Events) { e.Services().OnUpdate(labelled("a"), labelled("b")) }},
		{name: "selected again", do: func(e *Events) { e.Services().OnUpdate(labelled("a"), web) }, updates: 1},
		{name: "deleted", do: func(e *Events) { e.Services().OnDelete(web) }, removals: 1},
		{name: "deleted in another state", do: func(e *Events) { e.Services().OnDelete(labelled("a")) }, removals: 1},
		{name: "tombstone", do: func(e *Events) { e.Services().OnDelete(cache.DeletedFinalStateUnknown{Key: key, Obj: web}) }, removals: 1},
		{name: "tombstone with a name", do: func(e *Events) { e.Services().OnDelete(cache.DeletedFinalStateUnknown{Key: key}) }, removals: 1},
		{name: "tombstone without a name", do: func(e *Events) { e.Services().OnDelete(cache.DeletedFinalStateUnknown{Key: "a/b/c"}) }, report: "a/b/c"},
		{name: "wrong kind", do: func(e *Events) { e.Services().OnAdd(headless, true) }, report: "*v1.EndpointSlice, want *v1.Service"},
		{name: "tombstone of a wrong kind", do: func(e *Events) { e.Services().OnDelete(cache.DeletedFinalStateUnknown{Key: key, Obj: headless}) }, report: "want *v1.Service"},
		{name: "slice of a headless Service", do: func(e *Events) { e.EndpointSlices().OnAdd(headless, true) }},
		{name: "slice", do: func(e *Events) { e.EndpointSlices().OnAdd(slice("web-1", "10.0.0.1"), true) }, updates: 1},
		{name: "the node", do: func(e *Events) { e.Nodes().OnAdd(objects.Node("n1", "a"), true) }, updates: 1},
		{name: "another node", do: func(e *Events) {
			e.Nodes().OnAdd(objects.Node("n2", "a"), true)
			e.Nodes().OnDelete(objects.Node("n2", "a"))
		}},
		{name: "the node is deleted", do: func(e *Events) { e.Nodes().OnDelete(cache.DeletedFinalStateUnknown{Key: "n1"}) }, removals: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRecorder()
			var reported []string
			c.do(&Events{Handler: r, NodeName: "n1", ProxyName: c.proxy, Report: func(err error) { reported = append(reported, err.Error()) }})
			s := r.get()
			if s.updates != c.updates || s.removals != c.removals {
				t.Errorf("got %d updates and %d removals, want %d and %d", s.updates, s.removals, c.updates, c.removals)
			}
			if all := strings.Join(reported, "\n"); (all == "") != (c.report == "") || !strings.Contains(all, c.report) {
				t.Errorf("reported: got %q, want %q", all, c.report)
			}
		})
	}
}

func TestEventsEndWithTheContext(t *testing.T) {
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	r := newRecorder()
	e := &Events{Handler: r}
	if err := e.AwaitSynced(ctx, func() bool { return false }); !errors.Is(err, stop) {
		t.Errorf("AwaitSynced: got %v, want %v", err, stop)
	}
	// The handler is nil: Synced must not be called.
	if err := (&Events{}).AwaitSynced(t.Context()); err == nil {
		t.Error("AwaitSynced without registrations: got no error, want one")
	}
	if r.get().synced > 0 {
		t.Error("Synced was called, want no call before the handlers have synced")
	}
}
