package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/flowcontrol"
)

// The bounds of Events: users who create many bad Services can neither flood the API server nor take the
// Events of others.
const (
	// maxEvents is how many causes of one source are kept, maxNamespaceEvents those in a namespace.
	maxEvents, maxNamespaceEvents = 1000, 100
	// eventsPerMinute is how often a write is tried; as many more may follow each other after a pause.
	eventsPerMinute = 10
	// eventTimeout bounds a try.
	eventTimeout = 10 * time.Second
)

// cause is why an Event is written.
type cause struct {
	kind string
	types.NamespacedName
	reason string
	about  string // distinguishes causes with the same reason
}

// notice is an Event that is to be written, or was.
type notice struct {
	cause
	eventType, action, note string
	// ofNode says that the cause is on this node. The Event of another cause is written once in the
	// cluster, although each node finds it.
	ofNode bool
	// once says that the cause is over when it is reported; others last until they are removed.
	once  bool
	since time.Time
	// written counts the Events of a cause, those that another node had written included. The next one is
	// due at next.
	written int
	next    time.Time
}

// eventSink writes Events.
type eventSink interface {
	// version returns what identifies a Service and its content; nothing if there is no such Service.
	version(context.Context, types.NamespacedName) (objectVersion, error)
	// create writes the Event of a name.
	create(context.Context, eventName, *notice) error
}

// objectVersion identifies an object and its content.
type objectVersion struct {
	uid     types.UID
	version string
}

// eventName is the name of an Event, and the object that it is about.
type eventName struct {
	name string
	uid  types.UID
}

// events writes Events in the background. Whoever reports causes never waits for the API server.
type events struct {
	sink eventSink
	node string
	log  logr.Logger
	wake chan struct{} // has room for one token
	// refused says that a refusal was logged. Only run uses it.
	refused bool

	mu           sync.Mutex
	notices      map[string]map[cause]*notice // by source
	first, again shares
	// againFrom is when the next Event may be written again.
	againFrom time.Time
}

// shares counts tries by namespace, so that those with few go first.
type shares struct {
	period time.Duration
	since  time.Time
	tried  map[string]int
}

func newEvents(sink eventSink, node string, log logr.Logger) *events {
	return &events{
		sink: sink, node: node, log: log, wake: make(chan struct{}, 1), notices: map[string]map[cause]*notice{},
		first: shares{period: time.Minute}, again: shares{period: eventPeriod},
	}
}

// set replaces all causes of a source; those beyond maxEvents are dropped.
func (e *events) set(source string, all []notice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.notices[source]
	if len(known) == 0 && len(all) == 0 {
		return
	}
	delete(e.notices, source)
	for _, n := range all[:min(len(all), maxEvents)] {
		e.add(source, n, known[n.cause])
	}
}

// put adds a cause to a source, if the bounds admit it.
func (e *events) put(source string, n notice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	inNamespace := 0
	for c := range e.notices[source] {
		if c.Namespace == n.Namespace {
			inNamespace++
		}
	}
	if len(e.notices[source]) < maxEvents && inNamespace < maxNamespaceEvents {
		e.add(source, n, e.notices[source][n.cause])
	}
}

// add adds a notice, or keeps the one that is known of its cause.
func (e *events) add(source string, n notice, known *notice) {
	if e.notices[source] == nil {
		e.notices[source] = map[cause]*notice{}
	}
	if known == nil {
		n.since = time.Now()
		known = &n
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
	known.note = n.note // What it is about may have got another reason.
	e.notices[source][n.cause] = known
}

// remove removes a cause from a source.
func (e *events) remove(source string, c cause) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.notices[source], c)
}

// next returns a copy of the notice to write next, and nil if none is due: one that is written again before
// a new one; of the namespace with the fewest tries, the oldest one.
func (e *events) next() *notice {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for _, s := range [...]*shares{&e.first, &e.again} {
		if now.Sub(s.since) >= s.period {
			s.since, s.tried = now, map[string]int{}
		}
	}
	var first *notice
	for n := range e.all() {
		if at, is := e.due(n); is && !at.After(now) && (first == nil || e.before(n, first)) {
			first = n
		}
	}
	if first == nil {
		return nil
	}
	if first.written > 0 {
		e.againFrom = now.Add(againPause)
	}
	e.sharesOf(first).tried[first.Namespace]++
	copied := *first
	return &copied
}

// all returns the notices of all sources.
func (e *events) all() iter.Seq[*notice] {
	return func(yield func(*notice) bool) {
		for _, all := range e.notices {
			for _, n := range all {
				if !yield(n) {
					return
				}
			}
		}
	}
}

func (e *events) sharesOf(n *notice) *shares {
	if n.written > 0 {
		return &e.again
	}
	return &e.first
}

func (e *events) before(a, b *notice) bool {
	// Only one in againPause is written again, and new causes, which users can make without end, must not
	// take its place.
	if isAgain := a.written > 0; isAgain != (b.written > 0) {
		return isAgain
	}
	tried := e.sharesOf(a).tried
	return cmp.Or(cmp.Compare(tried[a.Namespace], tried[b.Namespace]), a.next.Compare(b.next), a.since.Compare(b.since), strings.Compare(a.Name, b.Name), strings.Compare(a.reason+a.about, b.reason+b.about)) < 0
}

// due returns when a notice is to be written, if ever.
func (e *events) due(n *notice) (time.Time, bool) {
	switch {
	case n.written == 0:
		return n.since, true
	case n.once:
		return time.Time{}, false
	case n.next.Before(e.againFrom):
		return e.againFrom, true
	}
	return n.next, true
}

// pause returns how long no notice is due; false if there is none to wait for.
func (e *events) pause() (pause time.Duration, isKnown bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n := range e.all() {
		if at, is := e.due(n); is && (!isKnown || time.Until(at) < pause) {
			pause, isKnown = time.Until(at), true
		}
	}
	return pause, isKnown
}

// done records that a notice need not be written for now.
func (e *events) done(c cause) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, all := range e.notices {
		if n := all[c]; n != nil {
			n.written++
			n.next = n.nextPeriod(time.Now())
		}
	}
}

// run writes Events until ctx ends.
func (e *events) run(ctx context.Context) {
	pace := flowcontrol.NewTokenBucketRateLimiter(float32(eventsPerMinute)/60, eventsPerMinute)
	retry := eventPauses()
	for {
		if !e.await(ctx) {
			return
		}
		if pace.Wait(ctx) != nil {
			return
		}
		n := e.next()
		if n == nil {
			continue // The cause is gone.
		}
		if e.finished(e.write(ctx, n)) {
			e.done(n.cause)
			retry = eventPauses()
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry.Step()):
		}
	}
}

// await waits until a notice is due. It returns false when ctx ends.
func (e *events) await(ctx context.Context) bool {
	for {
		pause, isKnown := e.pause()
		if isKnown && pause <= 0 {
			return true
		}
		var due <-chan time.Time // never
		if isKnown {
			due = time.After(pause)
		}
		select {
		case <-ctx.Done():
			return false
		case <-e.wake:
		case <-due:
		}
	}
}

// eventPauses returns the pauses after tries that failed since the API server is away.
func eventPauses() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute}
}

// write writes a notice. That an Event of its name exists, or that the Service is gone, is no error.
func (e *events) write(ctx context.Context, n *notice) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	// The kubelet's convention: Events of a Node have its name as UID, and kubectl describe finds them.
	o := objectVersion{types.UID(n.Name), n.since.String()}
	if n.kind != "Node" {
		var err error
		if o, err = e.sink.version(ctx, n.NamespacedName); err != nil || o.uid == "" {
			return err
		}
	}
	err := e.sink.create(ctx, e.nameOf(n, o), n)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// nameOf returns the name of an Event: the same one after a restart, and on all nodes if the cause is there
// on all. Thus it exists already, unless the object has changed meanwhile. An Event that is written again
// has another name in each period.
func (e *events) nameOf(n *notice, o objectVersion) eventName {
	parts := []string{string(o.uid), o.version, n.reason, n.about, ""}
	if n.ofNode {
		parts[4] = e.node
	}
	if n.written > 0 {
		parts = append(parts, strconv.FormatInt(n.period(time.Now()), 10))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	const longest = 253 - 1 - 16
	return eventName{fmt.Sprintf("%s.%x", strings.TrimRight(n.Name[:min(len(n.Name), longest)], "-."), sum[:8]), o.uid}
}

// finished reports whether a try was the last one. If it has failed, another one would fail, too: only an
// API server that is away, or busy, is tried again.
func (e *events) finished(err error) bool {
	status, isStatus := err.(apierrors.APIStatus)
	switch {
	case err == nil:
	case !isStatus || status.Status().Code < 400 || status.Status().Code >= 500 ||
		apierrors.IsUnauthorized(err) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err):
		e.log.V(1).Info("Event not written; trying again", "reason", err.Error())
		return false
	case apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) && !e.refused:
		e.refused = true
		e.log.Error(err, "Events are not written: the API server refuses them; examples/kubeproxy/deploy/rbac.yaml has the permission")
	default:
		e.log.V(1).Info("Event not written", "reason", err.Error())
	}
	return true
}
