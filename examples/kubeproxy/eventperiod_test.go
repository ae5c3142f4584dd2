package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// forgetfulSink is an API server that forgets Events after an hour. Several nodes may use it.
type forgetfulSink struct {
	mu      sync.Mutex
	events  map[string]time.Time // by name, when they were created
	created map[string]int       // by note
	latest  map[string]time.Time // by note
	tries   int
}

func (*forgetfulSink) version(_ context.Context, name types.NamespacedName) (objectVersion, error) {
	return objectVersion{types.UID(name.String()), "1"}, nil
}

func (f *forgetfulSink) create(_ context.Context, name eventName, n *notice) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries++
	if at, exists := f.events[name.name]; exists && time.Since(at) < time.Hour {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, name.name)
	}
	f.events[name.name] = time.Now()
	f.created[n.note]++
	f.latest[n.note] = time.Now()
	return nil
}

func newForgetfulSink() *forgetfulSink {
	return &forgetfulSink{events: map[string]time.Time{}, created: map[string]int{}, latest: map[string]time.Time{}}
}

// counts returns how many Events of a note were created, and whether one is there now.
func (f *forgetfulSink) counts(note string) (created int, isThere bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.created[note], time.Since(f.latest[note]) < time.Hour
}

// start runs events of a node in the bubble of a test.
func (f *forgetfulSink) start(t *testing.T, node string) *events {
	t.Helper()
	e := newEvents(f, node, logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { e.run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return e
}

// TestEventsAreWrittenAgain checks that there is an Event of each cause as long as the cause is there, although the
// API server forgets them after an hour: one in 50 minutes, and one for all nodes if they share it. A start
// has one only.
func TestEventsAreWrittenAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink, causes := newForgetfulSink(), bad("a", 10)
		var nodes []*events
		for i := range 5 {
			e := sink.start(t, fmt.Sprint("node-", i))
			of := bad("b", 1)[0]
			of.ofNode, of.note = true, e.node
			e.put(starting, notice{cause: cause{kind: "Node", NamespacedName: types.NamespacedName{Name: e.node}, reason: starting}, note: "start " + e.node, ofNode: true, once: true})
			e.set(fieldIgnored, causes)
			e.set(notProgrammed, []notice{of})
			nodes = append(nodes, e)
			time.Sleep(7 * time.Minute) // Nodes start at different times.
		}
		const periods = 20
		for range periods * eventPeriod / time.Minute {
			time.Sleep(time.Minute)
			synctest.Wait()
			for _, c := range causes {
				if _, isThere := sink.counts(c.note); !isThere {
					t.Fatalf("%s: got no Event, want one as long as the cause is there", c.note)
				}
			}
		}
		for _, note := range []string{causes[0].note, causes[9].note, nodes[0].node, nodes[4].node} {
			if got, isThere := sink.counts(note); !isThere || got < periods-1 || got > periods+3 {
				t.Errorf("%s: got %d Events, the last one within an hour: %t, want about %d", note, got, isThere, periods)
			}
		}
		if got, _ := sink.counts("start node-0"); got != 1 {
			t.Errorf("start: got %d Events, want one", got)
		}
		nodes[0].set(fieldIgnored, nil)
		nodes[0].set(notProgrammed, nil)
		before, _ := sink.counts(nodes[0].node)
		time.Sleep(2 * eventPeriod)
		if after, _ := sink.counts(nodes[0].node); after != before {
			t.Errorf("without its cause: got %d more Events, want none", after-before)
		}
	})
}

// TestEventsWrittenAgainAreLimited checks that a node writes one in a minute again, that namespaces with few do
// not wait for one with many, and that new causes do not wait for them.
func TestEventsWrittenAgainAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := newForgetfulSink()
		e := sink.start(t, "node-1")
		e.set("many", bad("a", 20*maxNamespaceEvents))
		e.set("few", bad("b", 1))
		time.Sleep(2 * time.Hour) // All are written once.
		sink.mu.Lock()
		sink.tries = 0
		sink.mu.Unlock()
		few, _ := sink.counts("b/s0000")
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		sink.mu.Lock()
		tries := sink.tries
		sink.mu.Unlock()
		if tries < 590 || tries > 600 {
			t.Errorf("got %d tries in ten hours, want one in a minute", tries)
		}
		if got, isThere := sink.counts("b/s0000"); !isThere || got < few+11 {
			t.Errorf("namespace with one: got %d more Events in ten hours, want one in 50 minutes", got-few)
		}
		e.set("new", bad("c", 1))
		time.Sleep(time.Second)
		synctest.Wait()
		if got, _ := sink.counts("c/s0000"); got != 1 {
			t.Errorf("new cause: got %d Events within a second, want one", got)
		}
	})
}

// TestEventsAreWrittenAgainBesideManyNewOnes checks that a cause that comes and goes all the time, as users can
// make it, keeps no Event of others from being written again.
func TestEventsAreWrittenAgainBesideManyNewOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := newForgetfulSink()
		e := sink.start(t, "node-1")
		steady := bad("b", 1)
		e.set("steady", steady)
		for range 3 * time.Hour / time.Second {
			e.set("flapping", nil)
			e.set("flapping", bad("a", 1))
			time.Sleep(time.Second)
		}
		if got, isThere := sink.counts(steady[0].note); !isThere || got < 3 {
			t.Errorf("got %d Events in three hours, the last one within an hour: %t, want one in 50 minutes", got, isThere)
		}
	})
}

// TestEventsHaveTheLatestNote checks that an Event that is written again has the reason of that time.
func TestEventsHaveTheLatestNote(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := newForgetfulSink()
		e := sink.start(t, "node-1")
		n := bad("a", 1)
		n[0].note = "busy"
		e.set("source", n)
		time.Sleep(time.Minute)
		n[0].note = "in use"
		e.set("source", n)
		time.Sleep(2 * eventPeriod)
		synctest.Wait()
		if got, _ := sink.counts("busy"); got != 1 {
			t.Errorf("first reason: got %d Events, want one", got)
		}
		if got, isThere := sink.counts("in use"); got == 0 || !isThere {
			t.Errorf("later reason: got %d Events, want some", got)
		}
	})
}

// TestEventsHaveASeries checks that an Event that is written again says how often, and since when.
func TestEventsHaveASeries(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	sink := &apiEvents{client, "node-1"}
	n := bad("a", 1)[0]
	n.eventType, n.since = v1.EventTypeWarning, time.Now().Add(-2*time.Hour)
	for i, name := range []string{"first", "third"} {
		n.written = 2 * i
		testenv.NoError(t, sink.create(t.Context(), eventName{name: name}, &n))
		got, err := client.EventsV1().Events("a").Get(t.Context(), name, metav1.GetOptions{})
		testenv.NoError(t, err)
		if hasSeries := got.Series != nil; hasSeries != (i > 0) || hasSeries && (got.Series.Count != 3 || time.Since(got.Series.LastObservedTime.Time) > time.Minute) {
			t.Errorf("%s: got the series %v, want one of three until now for the third Event only", name, got.Series)
		}
	}
}
