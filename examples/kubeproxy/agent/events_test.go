package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// eventServer is an API server with Events. Only one goroutine uses it at a time: a test looks at it when the
// others wait.
type eventServer struct {
	*fake.Clientset
	names map[string]bool
	all   []*eventsv1.Event // in the order of writing
	seen  int               // how many of them after has returned
	tries int
	err   func(namespace string) error // of tries
	gone  map[string]bool              // Services that do not exist
	// content is the version of all Services.
	content string
}

func newEventServer() *eventServer {
	s := &eventServer{Clientset: fake.NewClientset(), names: map[string]bool{}}
	s.PrependReactor("list", "services", func(a clienttesting.Action) (bool, runtime.Object, error) {
		name := strings.TrimPrefix(a.(clienttesting.ListAction).GetListRestrictions().Fields.String(), "metadata.name=") //nolint:errcheck,forcetypeassert // it is one
		list := &v1.ServiceList{Items: []v1.Service{{ObjectMeta: metav1.ObjectMeta{UID: types.UID(a.GetNamespace() + name), ResourceVersion: s.content}}}}
		if s.gone[name] {
			list.Items = nil
		}
		return true, list, nil
	})
	s.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		event := a.(clienttesting.CreateAction).GetObject().(*eventsv1.Event) //nolint:errcheck,forcetypeassert // it is one
		s.tries++
		if s.err != nil {
			if err := s.err(event.Namespace); err != nil {
				return true, nil, err
			}
		}
		if s.names[event.Name] {
			return true, nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, event.Name)
		}
		s.names[event.Name] = true
		s.all = append(s.all, event)
		return true, event, nil
	})
	return s
}

// start runs the events of a node, in the bubble of a test.
func (s *eventServer) start(t *testing.T, node string, log logr.Logger) *events {
	t.Helper()
	e := newEvents(s, node, log)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { e.run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	synctest.Wait()
	return e
}

// idleEvents returns events that write nothing.
func idleEvents(t *testing.T) *events {
	t.Helper()
	e := newEvents(fake.NewClientset(), "node-1", logr.Discard())
	t.Cleanup(e.queue.ShutDown)
	return e
}

// after lets time pass, and returns the notes of the Events that were written since its last call.
func (s *eventServer) after(d time.Duration) (notes []string) {
	time.Sleep(d)
	synctest.Wait()
	for _, event := range s.all[s.seen:] {
		notes = append(notes, event.Note)
	}
	s.seen = len(s.all)
	return notes
}

// bad returns notices about Services of a namespace.
func bad(namespace string, n int) (all []notice) {
	for i := range n {
		name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("s%04d", i)}
		all = append(all, notice{cause: cause{kind: "Service", NamespacedName: name, reason: fieldIgnored}, eventType: v1.EventTypeWarning, action: "Serve", note: name.String()})
	}
	return all
}

// TestEventsAreWrittenOnce checks that a cause has one Event as long as it is there, also after a restart and of
// another node, and one more if it comes again with another content of the Service.
func TestEventsAreWrittenOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newEventServer()
		server.gone = map[string]bool{"s0002": true}
		e := server.start(t, "node-1", logr.Discard())
		for i, step := range []struct {
			all     []notice
			content string
			want    int
		}{
			{bad("a", 2), "1", 2},
			{bad("a", 2), "1", 0},
			{bad("a", 2), "2", 0},
			{bad("a", 3), "2", 0}, // the third Service is gone
			{bad("a", 4), "2", 1},
			{bad("a", 1), "2", 0},
			{bad("a", 2), "2", 1}, // after a change
			{nil, "2", 0},
			{bad("a", 2)[1:], "2", 0}, // the same change
		} {
			server.content = step.content
			e.set(fieldIgnored, step.all)
			if got := server.after(time.Minute); len(got) != step.want {
				t.Errorf("step %d: got Events %q, want %d", i, got, step.want)
			}
		}
		first := server.all[0]
		if first.ReportingController != "kube-proxy" || first.ReportingInstance != "kube-proxy-node-1" || first.Regarding.UID != types.UID(strings.ReplaceAll(first.Note, "/", "")) || first.Regarding.Kind != "Service" || first.Type != v1.EventTypeWarning {
			t.Errorf("got %+v, want kube-proxy's controller, and the Service with its UID", first)
		}
		again := server.start(t, "node-2", funcr.New(func(_, args string) { t.Errorf("after a restart: got a line %s, want none", args) }, funcr.Options{Verbosity: 1}))
		again.set(fieldIgnored, bad("a", 2)[1:])
		if got := server.after(time.Minute); len(got) != 0 {
			t.Errorf("after a restart: got Events %q, want none", got)
		}
		again.put(starting, notice{cause: cause{kind: "Node", NamespacedName: types.NamespacedName{Name: "node-1"}, reason: starting}, eventType: v1.EventTypeNormal, note: "x"})
		if got := server.after(time.Minute); len(got) != 1 || server.all[server.seen-1].Regarding.UID != "node-1" {
			t.Errorf("a start: got Events %q about %+v, want one about the Node", got, server.all[server.seen-1].Regarding)
		}
	})
}

// TestEventNames checks that names are valid.
func TestEventNames(t *testing.T) {
	t.Parallel()
	if got := eventName(strings.Repeat("x", 235)+".y"+strings.Repeat("z", 16), "a"); len(got) > 253 || strings.Contains(got, "..") {
		t.Errorf("got %s, %d bytes, want a valid name of at most 253", got, len(got))
	}
	if eventName("a", "b", "c") == eventName("a", "bc", "") {
		t.Error("got the same name for other parts, want another one")
	}
}

// TestEventsAreLimited checks the number of Events in a minute, from below and above.
func TestEventsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newEventServer()
		e := server.start(t, "node-1", logr.Discard())
		e.set("few", bad("a", eventsPerMinute))
		if got := len(server.after(0)); got != eventsPerMinute {
			t.Errorf("at once: got %d Events, want all %d", got, eventsPerMinute)
		}
		e.set("many", bad("b", maxNamespaceEvents))
		if got := len(server.after(6*time.Second - time.Millisecond)); got != 0 {
			t.Errorf("within six seconds: got %d more, want none", got)
		}
		if got := len(server.after(2 * time.Millisecond)); got != 1 {
			t.Errorf("after six seconds: got %d more, want one", got)
		}
		if got := len(server.after(time.Minute)); got != eventsPerMinute {
			t.Errorf("in a minute: got %d more, want %d", got, eventsPerMinute)
		}
	})
}

// TestEventsAreBounded checks the number of causes that are kept, from below and above.
func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	kept := func(namespaces, each int) (bySet, byPut int) {
		e := idleEvents(t)
		var all []notice
		for i := range namespaces {
			all = append(all, bad(fmt.Sprint("n", i), each)...)
		}
		e.set("set", all)
		for _, n := range all {
			e.put("put", n)
		}
		return len(e.notices["set"]), len(e.notices["put"])
	}
	for _, tc := range []struct{ namespaces, each, bySet, byPut int }{
		{1, maxNamespaceEvents - 1, maxNamespaceEvents - 1, maxNamespaceEvents - 1},
		{1, maxNamespaceEvents + 1, maxNamespaceEvents + 1, maxNamespaceEvents}, // the caller of set bounds namespaces
		{maxEvents / 10, 10, maxEvents, maxEvents},
		{maxEvents/10 + 1, 10, maxEvents, maxEvents},
	} {
		if bySet, byPut := kept(tc.namespaces, tc.each); bySet != tc.bySet || byPut != tc.byPut {
			t.Errorf("%d namespaces with %d each: got %d by set and %d by put, want %d and %d", tc.namespaces, tc.each, bySet, byPut, tc.bySet, tc.byPut)
		}
	}
}

// TestEventsWithoutAPIServer checks that Events wait while the API server is away, that few tries are made,
// and that causes that end meanwhile are forgotten.
func TestEventsWithoutAPIServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newEventServer()
		server.err = func(string) error { return errors.New("connection refused") }
		lines := 0
		e := server.start(t, "node-1", funcr.New(func(_, _ string) { lines++ }, funcr.Options{}))
		e.set(fieldIgnored, bad("a", 3))
		if got := server.after(time.Hour); len(got) > 0 || server.tries < 500 || server.tries > 60*eventsPerMinute+2*eventsPerMinute || lines > 0 {
			t.Errorf("got Events %q, %d tries, %d lines in an hour, want none, %d each minute, none", got, server.tries, lines, eventsPerMinute)
		}
		e.set(fieldIgnored, bad("a", 3)[1:])
		server.err = nil
		if got := server.after(2 * time.Minute); len(got) != 2 {
			t.Errorf("when it is back: got %q, want the two that are still true", got)
		}
	})
}

// TestEventsRefused checks that one line in the log says that Events are refused, and that other refusals
// concern one Event only.
func TestEventsRefused(t *testing.T) {
	t.Parallel()
	forbidden := func() *apierrors.StatusError {
		return apierrors.NewForbidden(schema.GroupResource{Group: "events.k8s.io", Resource: "events"}, "x", errors.New("no permission"))
	}
	ending := forbidden()
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: v1.NamespaceTerminatingCause}}
	for name, tc := range map[string]struct {
		err   error
		lines int
	}{
		"permission": {forbidden(), 1},
		"namespace":  {ending, 0},
		"invalid":    {apierrors.NewInvalid(schema.GroupKind{}, "x", nil), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newEventServer()
				server.err = func(namespace string) error {
					if namespace == "bad" {
						return tc.err
					}
					return nil
				}
				var lines []string
				e := server.start(t, "node-1", funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
				e.set(fieldIgnored, bad("bad", 50))
				server.after(5 * time.Minute) // None is tried again until then.
				if server.tries != 50 || len(lines) != tc.lines || tc.lines > 0 && !strings.Contains(lines[0], "rbac.yaml") {
					t.Errorf("got %d tries, lines %q, want one try for each, %d lines", server.tries, lines, tc.lines)
				}
				e.set("other", bad("good", 1))
				if got := server.after(time.Minute); len(got) != 1 {
					t.Errorf("another namespace: got Events %q, want one", got)
				}
			})
		})
	}
}

// TestEventsAreWrittenAgain checks that a cause that lasts has an Event again soon after the API server has
// forgotten it, with the reason of that time, that one cause in a minute is reported again, and one that is over is not.
func TestEventsAreWrittenAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newEventServer()
		e := server.start(t, "node-1", logr.Discard())
		e.put(starting, notice{cause: cause{kind: "Node", NamespacedName: types.NamespacedName{Name: "node-1"}, reason: starting}, eventType: v1.EventTypeNormal, note: "start"})
		e.notices[starting][cause{kind: "Node", NamespacedName: types.NamespacedName{Name: "node-1"}, reason: starting}].once = true
		all := bad("a", 40)
		e.set(fieldIgnored, all)
		if got := server.after(time.Hour); len(got) != 41 {
			t.Errorf("got %d Events, want 41", len(got))
		}
		clear(server.names)
		all[0].note = "in use"
		e.set(fieldIgnored, all[:30])
		server.tries = 0
		got := server.after(41 * time.Minute)
		if len(got) != 30 || !slices.Contains(got, "in use") || slices.Contains(got, "start") || slices.Contains(got, "a/s0039") || server.tries > 41 {
			t.Errorf("within 41 minutes: got %d Events %q in %d tries, want Events of the 30 causes that last, one try in a minute", len(got), got, server.tries)
		}
	})
}

// TestEachNoteHasAnEvent checks that each note of an object is written, once, while the API server has it.
func TestEachNoteHasAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newEventServer()
		e := server.start(t, "node-1", logr.Discard())
		for _, text := range []string{"one", "two", "three"} {
			all := bad("a", 1)
			all[0].about, all[0].note = text, text
			e.set(fieldIgnored, all)
			if got := server.after(time.Minute); !slices.Equal(got, []string{text}) {
				t.Errorf("note %s of a Service: got Events %q, want one", text, got)
			}
		}
		var limits []notice
		for _, text := range []string{"few clients", "no weights"} {
			limits = append(limits, notice{cause: cause{kind: "Node", NamespacedName: types.NamespacedName{Name: "node-1"}, reason: servedWithLimits, about: text}, eventType: v1.EventTypeWarning, action: "Serve", note: text})
		}
		e.set(servedWithLimits, limits)
		got := server.after(time.Minute)
		if slices.Sort(got); !slices.Equal(got, []string{"few clients", "no weights"}) {
			t.Errorf("two limits of a Node: got Events %q, want both", got)
		}
		if got := server.after(5 * time.Hour); len(got) > 0 {
			t.Errorf("while the API server has them: got Events %q, want none", got)
		}
		clear(server.names)
		if got := server.after(time.Hour); len(got) != 3 {
			t.Errorf("when it has forgotten them: got Events %q, want the three that last", got)
		}
	})
}

// TestEndedCausesDelayNone checks that a cause that lasts is reported again in time although many others came and went.
func TestEndedCausesDelayNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newEventServer()
		e := server.start(t, "node-1", logr.Discard())
		e.set("lasts", bad("a", 1))
		for i := range 300 {
			e.set("ends", bad(fmt.Sprint("n", i), eventsPerMinute-1))
			server.after(time.Minute)
		}
		e.set("ends", nil)
		clear(server.names)
		if got := server.after(eventPeriod + 2*time.Minute); len(got) != 1 {
			t.Errorf("got Events %q, want the one whose cause lasts", got)
		}
	})
}
