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
	"k8s.io/client-go/util/workqueue"
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
}

// events writes Events in the background: whoever reports causes never waits for the API server. It writes them
// itself: the broadcaster of client-go would group Events that differ in their notes.
type events struct {
	sink  eventSink
	queue workqueue.TypedDelayingInterface[cause]

	mu      sync.Mutex
	notices map[string]map[cause]*notice // by source
	again   time.Time                    // when the last cause is reported again
}

func newEvents(client kubernetes.Interface, node string, log logr.Logger) *events {
	return &events{
		sink:  eventSink{client: client, node: node, log: log},
		queue: workqueue.NewTypedDelayingQueue[cause](), notices: map[string]map[cause]*notice{},
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

// add reports a notice, or keeps the notice that is known of its cause.
func (e *events) add(source string, n notice, known *notice) {
	if e.notices[source] == nil {
		e.notices[source] = map[cause]*notice{}
	}
	if known == nil {
		n.first, n.reported = n.note, time.Now()
		known = &n
		e.queue.Add(n.cause)
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

// current returns a copy of the notice of a cause, nil if the cause has ended.
func (e *events) current(c cause) *notice {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, all := range e.notices {
		if n := all[c]; n != nil {
			copied := *n
			return &copied
		}
	}
	return nil
}

// untilAgain returns when a cause that lasts is to be reported again: in a minute of its own, so that new ones need not
// wait, but no later than if causes that have ended had no minute.
func (e *events) untilAgain() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	count := 0
	for _, all := range e.notices {
		count += len(all)
	}
	latest := max(eventPeriod, time.Duration(count)*time.Minute)
	until := min(max(eventPeriod, time.Until(e.again)+time.Minute), latest)
	e.again = time.Now().Add(until)
	return until
}

// run writes Events until ctx ends.
func (e *events) run(ctx context.Context) {
	defer context.AfterFunc(ctx, e.queue.ShutDown)()
	pace := flowcontrol.NewTokenBucketRateLimiter(float32(eventsPerMinute)/60, eventsPerMinute)
	for {
		c, ended := e.queue.Get()
		if ended {
			return
		}
		if e.current(c) != nil && pace.Wait(ctx) == nil {
			e.write(ctx, c)
		}
		e.queue.Done(c)
	}
}

// write writes the Event of a cause that has not ended, and has it written again if that fails, or the cause lasts.
func (e *events) write(ctx context.Context, c cause) {
	switch n := e.current(c); {
	case n == nil:
	case !e.sink.finished(e.sink.write(ctx, n)):
		e.queue.Add(c)
	case !n.once:
		e.queue.AddAfter(c, e.untilAgain())
	}
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
