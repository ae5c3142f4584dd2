package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// fakeSink is an API server with Events. Only the goroutine of events uses it while that runs; a test looks at
// it when that goroutine waits.
type fakeSink struct {
	names map[string]bool
	notes []string // in the order of writing
	seen  int      // how many of them after has returned
	tries int
	err   func(namespace string) error // of tries
	gone  map[string]bool              // Services that do not exist
	// content is the version of all Services.
	content string
}

func (f *fakeSink) version(_ context.Context, name types.NamespacedName) (objectVersion, error) {
	if f.gone[name.Name] {
		return objectVersion{}, nil
	}
	return objectVersion{types.UID(name.String()), f.content}, nil
}

func (f *fakeSink) create(_ context.Context, name eventName, n *notice) error {
	f.tries++
	if f.err != nil {
		if err := f.err(n.Namespace); err != nil {
			return err
		}
	}
	if f.names[name.name] {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, name.name)
	}
	if f.names == nil {
		f.names = map[string]bool{}
	}
	f.names[name.name] = true
	f.notes = append(f.notes, n.note)
	return nil
}

// running runs events with a sink, in the bubble of a test.
func running(t *testing.T, sink *fakeSink, log logr.Logger) *events {
	t.Helper()
	e := newEvents(sink, "node-1", log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { e.run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return e
}

// bad returns notices about Services of a namespace.
func bad(namespace string, n int) (all []notice) {
	for i := range n {
		name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("s%04d", i)}
		all = append(all, notice{cause: cause{kind: "Service", NamespacedName: name, reason: fieldIgnored}, note: name.String()})
	}
	return all
}

// after lets time pass, and returns the Events that were written since its last call.
func (f *fakeSink) after(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	all := f.notes[f.seen:]
	f.seen = len(f.notes)
	return all
}

// TestEventsAreWrittenOnce checks that a cause has one Event as long as it is there, also after a restart, and
// one more if it comes again with another content of the Service.
func TestEventsAreWrittenOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := &fakeSink{content: "1", gone: map[string]bool{"s0002": true}}
		e := running(t, sink, logr.Discard())
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
			sink.content = step.content
			e.set(fieldIgnored, step.all)
			if got := sink.after(time.Minute); len(got) != step.want {
				t.Errorf("step %d: got Events %q, want %d", i, got, step.want)
			}
		}
		again := running(t, sink, funcr.New(func(_, args string) { t.Errorf("after a restart: got a line %s, want none", args) }, funcr.Options{Verbosity: 1}))
		again.set(fieldIgnored, bad("a", 2)[1:])
		if got := sink.after(time.Minute); len(got) != 0 {
			t.Errorf("after a restart: got Events %q, want none", got)
		}
		again.put(starting, notice{cause: cause{kind: "Node", NamespacedName: types.NamespacedName{Name: "node-1"}, reason: starting}, note: "x"})
		if got := sink.after(time.Minute); len(got) != 1 {
			t.Errorf("a start: got Events %q, want one", got)
		}
	})
}

// TestNodesShareEvents checks which names are the same on two nodes.
func TestNodesShareEvents(t *testing.T) {
	t.Parallel()
	one, two, object := newEvents(nil, "node-1", logr.Discard()), newEvents(nil, "node-2", logr.Discard()), objectVersion{"uid", "5"}
	for _, ofNode := range []bool{false, true} {
		n := bad("a", 1)[0]
		n.ofNode = ofNode
		if got := one.nameOf(&n, object) == two.nameOf(&n, object); got == ofNode {
			t.Errorf("cause of the node %t: the same name: got %t, want %t", ofNode, got, !ofNode)
		}
	}
	n := bad("a", 1)[0]
	n.Name = strings.Repeat("x", 235) + ".y" + strings.Repeat("z", 16)
	if got := one.nameOf(&n, object).name; len(got) > 253 || strings.Contains(got, "..") {
		t.Errorf("got %s, %d bytes, want a valid name of at most 253", got, len(got))
	}
}

// TestEventsAreLimited checks the number of Events in a minute, from below and above, and that Services of
// another namespace need not wait for those of one with many.
func TestEventsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := &fakeSink{}
		e := running(t, sink, logr.Discard())
		e.set("few", bad("a", eventsPerMinute))
		if got := len(sink.after(0)); got != eventsPerMinute {
			t.Errorf("at once: got %d Events, want all %d", got, eventsPerMinute)
		}
		e.set("many", bad("b", maxNamespaceEvents))
		if got := len(sink.after(6*time.Second - time.Millisecond)); got != 0 {
			t.Errorf("within six seconds: got %d more, want none", got)
		}
		if got := len(sink.after(2 * time.Millisecond)); got != 1 {
			t.Errorf("after six seconds: got %d more, want one", got)
		}
		if got := len(sink.after(time.Minute)); got != eventsPerMinute {
			t.Errorf("in a minute: got %d more, want %d", got, eventsPerMinute)
		}
		e.set("other", bad("c", 1))
		if got := sink.after(6 * time.Second); !slices.Equal(got, []string{"c/s0000"}) {
			t.Errorf("another namespace: got %q, want its Event next", got)
		}
	})
}

// TestEventsAreBounded checks the number of causes that are kept, from below and above.
func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	kept := func(namespaces, each int) (bySet, byPut int) {
		e := newEvents(&fakeSink{}, "node-1", logr.Discard())
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
		sink := &fakeSink{err: func(string) error { return errors.New("connection refused") }}
		lines := 0
		e := running(t, sink, funcr.New(func(_, _ string) { lines++ }, funcr.Options{}))
		e.set(fieldIgnored, bad("a", 3))
		if got := sink.after(time.Hour); len(got) > 0 || sink.tries < 60 || sink.tries > 80 || lines > 0 {
			t.Errorf("got Events %q, %d tries, %d lines in an hour, want none, about one each minute, none", got, sink.tries, lines)
		}
		e.set(fieldIgnored, bad("a", 3)[1:])
		sink.err = nil
		if got := sink.after(2 * time.Minute); len(got) != 2 {
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
				sink := &fakeSink{err: func(namespace string) error {
					if namespace == "bad" {
						return tc.err
					}
					return nil
				}}
				var lines []string
				e := running(t, sink, funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
				e.set(fieldIgnored, bad("bad", 50))
				sink.after(eventJitter) // None is tried again until then.
				if sink.tries != 50 || len(lines) != tc.lines || tc.lines > 0 && !strings.Contains(lines[0], "rbac.yaml") {
					t.Errorf("got %d tries, lines %q, want one try for each, %d lines", sink.tries, lines, tc.lines)
				}
				e.set("other", bad("good", 1))
				if got := sink.after(time.Minute); len(got) != 1 {
					t.Errorf("another namespace: got Events %q, want one", got)
				}
				e.set("more", bad("bad", 51)[50:])
				if sink.after(time.Minute); len(lines) != tc.lines {
					t.Errorf("after an Event that was written: got lines %q, want no further one", lines)
				}
			})
		})
	}
}

// TestEventsDoNotBlock checks that causes are reported while the API server does not answer.
func TestEventsDoNotBlock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		sink := &fakeSink{err: func(string) error { <-answer; return nil }}
		e := running(t, sink, logr.Discard())
		e.set(fieldIgnored, bad("a", 1))
		synctest.Wait() // A request is open.
		start := time.Now()
		e.set(fieldIgnored, bad("a", 2))
		e.put(listening, bad("b", 1)[0])
		e.remove(listening, bad("b", 1)[0].cause)
		if took := time.Since(start); took > 0 {
			t.Errorf("got %v, want no time", took)
		}
		close(answer)
		if got := sink.after(time.Minute); len(got) != 2 {
			t.Errorf("got Events %q, want those of both causes", got)
		}
	})
}
