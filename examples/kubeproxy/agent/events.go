package agent

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
)

// The bounds of Events: users who create many bad Services cannot flood the API server.
const (
	// maxEvents is how many causes of one source are kept, maxNamespaceEvents those in a namespace.
	maxEvents, maxNamespaceEvents = 1000, 100
	// eventsPerMinute is how often a write is tried; as many more may follow each other after a pause.
	eventsPerMinute = 10
	// eventTimeout bounds a try.
	eventTimeout = 10 * time.Second
	// eventPeriod is how often a cause that lasts is reported again. Nothing is written as long as the API server
	// has the Event, by default for an hour.
	eventPeriod = 20 * time.Minute
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
	// once says that the cause is over when it is reported; others last until they are removed.
	once bool
	// first is its first note, which names the Event; reported is when it came.
	first    string
	reported time.Time
	tried    time.Time
	pending  bool
}

// events writes Events in the background: whoever reports causes never waits for the API server. It writes them
// itself: the broadcaster of client-go would group Events that differ in their notes.
type events struct {
	sink eventSink
	wake chan struct{} // has room for one token

	mu       sync.Mutex
	notices  map[string]map[cause]*notice // by source
	repeated time.Time
}

func newEvents(client kubernetes.Interface, node string, log logr.Logger) *events {
	return &events{
		sink: eventSink{client: client, node: node, log: log}, wake: make(chan struct{}, 1),
		notices: map[string]map[cause]*notice{}, repeated: time.Now(),
	}
}

// set replaces all causes of a source; those beyond maxEvents are dropped.
func (e *events) set(source string, all []notice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.notices[source]
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

// add reports a notice, or keeps the one that is known of its cause.
func (e *events) add(source string, n notice, known *notice) {
	if e.notices[source] == nil {
		e.notices[source] = map[cause]*notice{}
	}
	if known == nil {
		n.first, n.reported, n.tried, n.pending = n.note, time.Now(), time.Now(), true
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

// next returns a copy of the notice to write next, the one that has waited longest, and nil if there is none. In each
// minute it takes up one cause again: new ones of others need not wait.
func (e *events) next() *notice {
	e.mu.Lock()
	defer e.mu.Unlock()
	var next, again *notice
	for _, all := range e.notices {
		for _, n := range all {
			switch {
			case n.pending && (next == nil || n.tried.Before(next.tried)):
				next = n
			case !n.pending && !n.once && (again == nil || n.tried.Before(again.tried)):
				again = n
			}
		}
	}
	if again != nil && time.Since(e.repeated) >= time.Minute && time.Since(again.tried) >= eventPeriod {
		e.repeated, again.pending, next = time.Now(), true, again
	}
	if next == nil {
		return nil
	}
	next.tried = time.Now()
	copied := *next
	return &copied
}

// done records that a notice need not be written for now.
func (e *events) done(c cause) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, all := range e.notices {
		if n := all[c]; n != nil {
			n.pending = false
		}
	}
}

// run writes Events until ctx ends.
func (e *events) run(ctx context.Context) {
	pace := flowcontrol.NewTokenBucketRateLimiter(float32(eventsPerMinute)/60, eventsPerMinute)
	minutes := time.NewTicker(time.Minute)
	defer minutes.Stop()
	for {
		for n := e.next(); n != nil; n = e.next() {
			if pace.Wait(ctx) != nil {
				return
			}
			if e.isCurrent(n.cause) && e.sink.finished(e.sink.write(ctx, n)) {
				e.done(n.cause)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-minutes.C:
		case <-e.wake:
		}
	}
}

// isCurrent reports whether a cause is still there.
func (e *events) isCurrent(c cause) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, all := range e.notices {
		if all[c] != nil {
			return true
		}
	}
	return false
}

// eventSink writes Events. Their names are the same after a restart, and on all nodes that write the same note, as
// long as the object is unchanged: so the API server has each once.
type eventSink struct {
	client  kubernetes.Interface
	node    string
	log     logr.Logger
	refused sync.Once
}

// write writes the Event of a notice. That there is one of its name, or that the Service is gone, is no error.
func (s *eventSink) write(ctx context.Context, n *notice) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	// The kubelet's convention: Events of a Node have its name as UID, and kubectl describe finds them.
	uid, version, namespace := types.UID(n.Name), n.reported.String(), metav1.NamespaceDefault
	if n.kind != "Node" {
		// The role allows to list Services, and not to get one.
		found, err := s.client.CoreV1().Services(n.Namespace).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, n.Name).String(),
		})
		if err != nil || len(found.Items) != 1 {
			return err
		}
		uid, version, namespace = found.Items[0].UID, found.Items[0].ResourceVersion, n.Namespace
	}
	_, err := s.client.EventsV1().Events(namespace).Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: eventName(n.Name, string(uid), version, n.reason, n.first)},
		EventTime:           metav1.NowMicro(),
		ReportingController: component, ReportingInstance: cut(component+"-"+s.node, 128),
		Regarding: v1.ObjectReference{APIVersion: "v1", Kind: n.kind, Namespace: n.Namespace, Name: n.Name, UID: uid},
		Type:      n.eventType, Reason: n.reason, Action: n.action, Note: cut(n.note, maxNote),
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// eventName returns the name of an Event about an object, which depends on parts.
func eventName(object string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	const longest = 253 - 1 - 16
	return fmt.Sprintf("%s.%x", strings.TrimRight(object[:min(len(object), longest)], "-."), sum[:8])
}

// finished reports whether a try was the last one. If it has failed, another one would fail, too: only an API server
// that is away, or busy, is tried again.
func (s *eventSink) finished(err error) bool {
	status, isStatus := err.(apierrors.APIStatus)
	again := []func(error) bool{apierrors.IsUnauthorized, apierrors.IsTooManyRequests, apierrors.IsTimeout}
	switch {
	case err == nil:
	case !isStatus || status.Status().Code < 400 || status.Status().Code >= 500 || slices.ContainsFunc(again, func(is func(error) bool) bool { return is(err) }):
		s.log.V(1).Info("Event not written; trying again", "reason", err.Error())
		return false
	case apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		s.refused.Do(func() {
			s.log.Error(err, "Events are not written: the API server refuses them; examples/kubeproxy/deploy/rbac.yaml has the permission")
		})
		fallthrough
	default:
		s.log.V(1).Info("Event not written", "reason", err.Error())
	}
	return true
}

// maxNote is the most bytes that a note may have.
const maxNote = 1024

// cut returns at most some bytes of a text, as valid UTF-8.
func cut(text string, most int) string { return strings.ToValidUTF8(text[:min(len(text), most)], "") }
