package agent

import (
	"context"
	"crypto/sha256"
	"errors"
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
	"k8s.io/client-go/kubernetes/scheme"
	eventclient "k8s.io/client-go/tools/events"
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
	// maxEventAge is how long an Event waits for the API server. Its cause is reported again anyhow.
	maxEventAge = 2 * time.Hour
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
	// reported is when it was last given to the recorder.
	reported time.Time
}

// events gives causes to the recorder of client-go, which writes in the background: whoever reports causes never
// waits for the API server.
type events struct {
	recorder    eventclient.EventRecorder
	broadcaster eventclient.EventBroadcaster

	mu      sync.Mutex
	notices map[string]map[cause]*notice // by source
}

func newEvents(client kubernetes.Interface, node string, log logr.Logger) *events {
	e := &events{notices: map[string]map[cause]*notice{}}
	e.broadcaster = eventclient.NewBroadcaster(&eventSink{
		client: client, node: node, log: log, isCurrent: e.isCurrent,
		pace: flowcontrol.NewTokenBucketRateLimiter(float32(eventsPerMinute)/60, eventsPerMinute),
	})
	e.recorder = e.broadcaster.NewRecorder(scheme.Scheme, component)
	return e
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
		known = &n
	}
	known.note = n.note // What it is about may have got another reason.
	e.notices[source][n.cause] = known
	if known.reported.IsZero() {
		e.report(known)
	}
}

func (e *events) report(n *notice) {
	n.reported = time.Now()
	at := &v1.ObjectReference{APIVersion: "v1", Kind: n.kind, Namespace: n.Namespace, Name: n.Name}
	e.recorder.Eventf(at, nil, n.eventType, n.reason, n.action, "%s", cut(n.note, maxNote))
}

// remove removes a cause from a source.
func (e *events) remove(source string, c cause) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.notices[source], c)
}

// isCurrent reports whether the cause of an Event is still there.
func (e *events) isCurrent(about *v1.ObjectReference, reason string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, all := range e.notices {
		for c := range all {
			if c.kind == about.Kind && c.Namespace == about.Namespace && c.Name == about.Name && c.reason == reason {
				return true
			}
		}
	}
	return false
}

// run writes Events until ctx ends. In each minute it reports one cause again: new ones of others need not wait.
func (e *events) run(ctx context.Context) error {
	defer e.broadcaster.Shutdown()
	if err := e.broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return err
	}
	minutes := time.NewTicker(time.Minute)
	defer minutes.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-minutes.C:
			e.repeat()
		}
	}
}

// repeat reports the cause again that has waited longest, if one has waited long enough.
func (e *events) repeat() {
	e.mu.Lock()
	defer e.mu.Unlock()
	var first *notice
	for _, all := range e.notices {
		for _, n := range all {
			if !n.once && (first == nil || n.reported.Before(first.reported)) {
				first = n
			}
		}
	}
	if first != nil && time.Since(first.reported) >= eventPeriod {
		e.report(first)
	}
}

// eventSink writes Events. Their names are the same after a restart, and on all nodes that write the same note, as
// long as the object is unchanged: so the API server has each once.
type eventSink struct {
	client    kubernetes.Interface
	node      string
	log       logr.Logger
	pace      flowcontrol.RateLimiter
	isCurrent func(about *v1.ObjectReference, reason string) bool
	refused   sync.Once
}

// Create implements [eventclient.EventSink]. It has a goroutine of its own, and tries as long as the cause is there: the
// broadcaster would give up after two minutes.
func (s *eventSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	for time.Since(event.EventTime.Time) < maxEventAge && s.pace.Wait(ctx) == nil {
		if s.finished(s.write(ctx, event.DeepCopy())) {
			break
		}
	}
	return event, nil
}

// Patch writes the Event of a cause that was there some minutes ago, too, unless much else is to be written.
func (s *eventSink) Patch(ctx context.Context, event *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	if s.pace.TryAccept() {
		one := event.DeepCopy()
		one.Series = nil
		s.finished(s.write(ctx, one))
	}
	return event, nil
}

// Update implements [eventclient.EventSink]; the broadcaster does not call it.
func (s *eventSink) Update(context.Context, *eventsv1.Event) (*eventsv1.Event, error) {
	return nil, errors.ErrUnsupported
}

// write writes an Event. That there is one of its name, or that the cause or the Service is gone, is no error.
func (s *eventSink) write(ctx context.Context, event *eventsv1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	at := &event.Regarding
	if !s.isCurrent(at, event.Reason) {
		return nil
	}
	// The kubelet's convention: Events of a Node have its name as UID, and kubectl describe finds them.
	uid, version := types.UID(at.Name), event.EventTime.String()
	if at.Kind != "Node" {
		// The permission to list is there, and not the one to get.
		found, err := s.client.CoreV1().Services(at.Namespace).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, at.Name).String(),
		})
		if err != nil || len(found.Items) != 1 {
			return err
		}
		uid, version = found.Items[0].UID, found.Items[0].ResourceVersion
	}
	at.UID = uid
	event.Name = eventName(at.Name, string(uid), version, event.Reason, event.Note)
	event.ReportingInstance = cut(component+"-"+s.node, 128)
	_, err := s.client.EventsV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
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
