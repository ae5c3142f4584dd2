package kubewatch

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Events passes the objects of shared informers to a Handler, for programs that have such
// informers already; a [Source] is for all others. Handler is required. The fields must not be
// changed after the first call of a method.
//
// Each method returns an event handler for AddEventHandler of an informer of this kind. The
// handlers read objects and do not keep or change them, so the caches of the informers stay as
// they are. Objects that a [Source] would not receive are left out.
type Events struct {
	// Handler receives the objects and their changes.
	Handler Handler
	// NodeName is the Node to pass on; empty for none.
	NodeName string
	// ProxyName selects the Services whose label
	// service.kubernetes.io/service-proxy-name has this value; empty selects those
	// without the label.
	ProxyName string
	// Report, if not nil, receives an error for each object of another kind than that of the
	// event handler. It may be called from several goroutines at once.
	Report func(error)
}

// Services returns the event handler for an informer of Services.
func (e *Events) Services() cache.ResourceEventHandler {
	return events[*v1.Service]{
		update: e.Handler.UpdateService, remove: e.Handler.DeleteService, report: e.Report,
		selects: e.selectsService,
	}
}

// EndpointSlices returns the event handler for an informer of EndpointSlices.
func (e *Events) EndpointSlices() cache.ResourceEventHandler {
	return events[*discoveryv1.EndpointSlice]{
		update: e.Handler.UpdateEndpointSlice, remove: e.Handler.DeleteEndpointSlice, report: e.Report,
		selects: func(s *discoveryv1.EndpointSlice) bool {
			_, isHeadless := s.Labels[v1.IsHeadlessService]
			return !isHeadless
		},
	}
}

// Nodes returns the event handler for an informer of Nodes. The informer may have other
// nodes, too.
func (e *Events) Nodes() cache.ResourceEventHandler {
	return events[*v1.Node]{
		update: e.Handler.UpdateNode, report: e.Report,
		selects: func(n *v1.Node) bool { return n.Name == e.NodeName },
		remove: func(n types.NamespacedName) {
			if n.Name == e.NodeName {
				e.Handler.UpdateNode(nil)
			}
		},
	}
}

// AwaitSynced waits until the event handlers have received all objects that existed at the
// start, and then calls Synced of the Handler. It takes the method HasSynced of each
// registration that AddEventHandler returned: that of an informer is true too early, when
// events still wait for the handler. It returns the cause of the end of ctx if that comes first.
// Without registrations it fails: an empty snapshot would remove all rules.
func (e *Events) AwaitSynced(ctx context.Context, registrations ...cache.InformerSynced) error {
	if len(registrations) == 0 {
		return errors.New("kubewatch: AwaitSynced needs HasSynced of each registration, got none")
	}
	if !cache.WaitForCacheSync(ctx.Done(), registrations...) {
		return context.Cause(ctx)
	}
	e.Handler.Synced()
	return nil
}

// selectsService decides what the API server decides for a Source.
func (e *Events) selectsService(s *v1.Service) bool {
	proxy, isLabelled := s.Labels[labelProxyName]
	return proxy == e.ProxyName && isLabelled == (e.ProxyName != "") && s.Spec.ClusterIP != v1.ClusterIPNone
}

// events is the event handler for one kind of objects.
type events[T object] struct {
	update  func(T)
	remove  func(types.NamespacedName)
	selects func(T) bool
	report  func(error)
}

// OnAdd passes an object on.
func (e events[T]) OnAdd(o any, _ bool) {
	if t, ok := e.read(o); ok && e.selects(t) {
		e.update(t)
	}
}

// OnUpdate passes a changed object on. An object that is not selected any more is removed. A
// resync, without a change, is ignored.
func (e events[T]) OnUpdate(before, now any) {
	t, ok := e.read(now)
	if !ok || before == now {
		return
	}
	if e.selects(t) {
		e.update(t)
	} else if old, ok := e.read(before); ok && e.selects(old) {
		e.remove(nameOf(t))
	}
}

// OnDelete removes an object. An informer that missed the deletion knows only an older state of
// the object, or its name; so it is removed whatever its last state is.
func (e events[T]) OnDelete(o any) {
	if late, ok := o.(cache.DeletedFinalStateUnknown); ok {
		if o = late.Obj; o == nil {
			name, err := cache.ParseObjectName(late.Key)
			if err != nil {
				e.failed(fmt.Errorf("kubewatch: a deleted %T: %w", *new(T), err))
				return
			}
			e.remove(types.NamespacedName{Namespace: name.Namespace, Name: name.Name})
			return
		}
	}
	if t, ok := e.read(o); ok {
		e.remove(nameOf(t))
	}
}

// read returns an object of the kind.
func (e events[T]) read(o any) (T, bool) {
	t, ok := o.(T)
	if !ok {
		e.failed(fmt.Errorf("kubewatch: the informer has %T, want %T", o, t))
	}
	return t, ok
}

func (e events[T]) failed(err error) {
	if e.report != nil {
		e.report(err)
	}
}
