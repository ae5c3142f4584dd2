package kubewatch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Events passes the objects of shared informers to a Handler, for programs that have such
// informers already; a [Watcher] is for all others. Handler is required. The fields must not be
// changed after the first call of a method.
//
// Each method returns an event handler for AddEventHandler of an informer of this kind. The
// handlers read objects and do not keep or change them, so the caches of the informers stay as
// they are; they keep names. Objects that a [Watcher] would not receive are left out.
//
// A program that restarts its informers gets new event handlers from the same Events, and calls
// AwaitSynced again: objects that were deleted in between are then removed. A method that returns an
// event handler disables the former event handler of the same kind. Several informers of one
// kind, such as one for each namespace, therefore need one event handler in common.
type Events struct {
	// Handler receives the objects and their changes.
	Handler Handler
	// NodeName is the Node to pass on; empty for none.
	NodeName string
	// ProxyName selects the Services whose label
	// service.kubernetes.io/service-proxy-name has this value; empty selects those
	// without the label. A tracker accepts Services with the label only if
	// TrackerOptions.Accept does.
	ProxyName string
	// Report, if not nil, receives an error for each object of another kind than that of the
	// event handler. It may be called from several goroutines at once.
	Report func(error)

	services, foreign, slices, nodes, cidrs inventory
	theirs                                  addresses
	ranges                                  *ranges // used by events of cidrs alone
	synced                                  sync.Once
}

// Services returns the event handler for an informer of Services.
func (e *Events) Services() cache.ResourceEventHandler {
	ours := events[*v1.Service]{
		inventory: &e.services, generation: e.services.next(e.Handler.DeleteService), update: e.Handler.UpdateService, report: e.Report,
		selects: func(s *v1.Service) bool { return e.isOurs(s) && s.Spec.ClusterIP != v1.ClusterIPNone },
	}
	others := events[*v1.Service]{
		inventory: &e.foreign, generation: e.foreign.next(e.theirs.remove), update: e.theirs.update,
		selects: func(s *v1.Service) bool { return !e.isOurs(s) },
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { ours.OnAdd(o, false); others.OnAdd(o, false) },
		UpdateFunc: func(before, now any) { ours.OnUpdate(before, now); others.OnUpdate(before, now) },
		DeleteFunc: func(o any) { ours.OnDelete(o); others.OnDelete(o) },
	}
}

// EndpointSlices returns the event handler for an informer of EndpointSlices.
func (e *Events) EndpointSlices() cache.ResourceEventHandler {
	return events[*discoveryv1.EndpointSlice]{
		inventory: &e.slices, generation: e.slices.next(e.Handler.DeleteEndpointSlice), update: e.Handler.UpdateEndpointSlice, report: e.Report,
		selects: func(s *discoveryv1.EndpointSlice) bool {
			_, isHeadless := s.Labels[v1.IsHeadlessService]
			return !isHeadless
		},
	}
}

// Nodes returns the event handler for an informer of Nodes. The informer may have other
// nodes, too.
func (e *Events) Nodes() cache.ResourceEventHandler {
	remove := func(n types.NamespacedName) {
		if n.Name == e.NodeName {
			e.Handler.UpdateNode(nil)
		}
	}
	return events[*v1.Node]{
		inventory: &e.nodes, generation: e.nodes.next(remove), update: e.Handler.UpdateNode, report: e.Report,
		selects: func(n *v1.Node) bool { return n.Name == e.NodeName },
	}
}

// ServiceCIDRs returns the event handler for an informer of ServiceCIDRs. Where API
// servers do not have ServiceCIDRs, as before 1.33, or do not allow to list them, such an informer never
// syncs, so AwaitSynced must not wait for it.
//
// AwaitSynced leaves the ranges of former event handlers alone until the new one has received
// some. So a program that does not wait for it keeps its ranges while it makes informers anew;
// once its informer has synced, another call of AwaitSynced removes ranges that exist no more.
func (e *Events) ServiceCIDRs() cache.ResourceEventHandler {
	if e.ranges == nil {
		e.ranges = newRanges(e.Handler.UpdateServiceCIDRs)
	}
	return events[*networkingv1.ServiceCIDR]{
		inventory: &e.cidrs, generation: e.cidrs.next(e.ranges.remove), update: e.ranges.update, report: e.Report,
		selects: func(*networkingv1.ServiceCIDR) bool { return true },
	}
}

// Foreign reports whether an address may be a ClusterIP of a Service for another proxy, for the
// Options of package conntrack. The informer of Services must have these Services, too. Until
// AwaitSynced succeeds after the newest call of Services, every address may be one. It may be called
// from any goroutine.
func (e *Events) Foreign(a netip.Addr) bool {
	e.foreign.mu.Lock()
	defer e.foreign.mu.Unlock()
	return !e.foreign.isComplete || e.theirs.count[a.Unmap()] > 0
}

// AwaitSynced waits until the event handlers have received all objects that existed at the
// start, removes objects of former event handlers that exist no more, and calls Synced of the
// Handler, unless an earlier call has. It takes the method HasSynced of each
// registration that AddEventHandler returned: that of an informer is true too early, when
// events still wait for the handler. The registrations must be of all event handlers
// that were taken since the last call that succeeded, except that of ServiceCIDRs, see there.
//
// It returns the cause of the end of ctx if that comes first. It fails, and does not call Synced, if
// an event handler, except that of ServiceCIDRs, gets a successor meanwhile: a call with the
// successor's registration is needed. Without registrations it fails: an empty snapshot would remove all rules.
func (e *Events) AwaitSynced(ctx context.Context, registrations ...cache.InformerSynced) error {
	if len(registrations) == 0 {
		return errors.New("kubewatch: AwaitSynced needs HasSynced of each registration, got none")
	}
	required := [...]*inventory{&e.services, &e.foreign, &e.slices, &e.nodes}
	var at [len(required)]int
	for i, k := range required {
		at[i] = k.newest()
	}
	atCIDRs := e.cidrs.newest()
	if !cache.WaitForCacheSync(ctx.Done(), registrations...) {
		return context.Cause(ctx)
	}
	areNewest := true
	for i, k := range required {
		areNewest = k.removeFormer(at[i]) && areNewest
	}
	if e.cidrs.hasAny(atCIDRs) { // Otherwise its informer may not have synced.
		e.cidrs.removeFormer(atCIDRs)
	}
	if !areNewest {
		return errors.New("kubewatch: AwaitSynced waited for an event handler that has a successor by now")
	}
	e.synced.Do(e.Handler.Synced)
	return nil
}

// isOurs decides by the label what the API server decides for a Watcher.
func (e *Events) isOurs(s *v1.Service) bool {
	proxy, isLabelled := s.Labels[labelProxyName]
	return proxy == e.ProxyName && isLabelled == (e.ProxyName != "")
}

// events is the event handler for one kind of objects.
type events[T object] struct {
	*inventory
	generation int
	update     func(T)
	selects    func(T) bool
	report     func(error)
}

// OnAdd passes an object on. A new informer may have it in a state that is not selected any more.
func (e events[T]) OnAdd(o any, _ bool) {
	t, ok := e.read(o)
	switch {
	case !ok:
	case e.selects(t):
		e.passOn(e.generation, nameOf(t), func() { e.update(t) })
	default:
		e.forget(e.generation, nameOf(t), false)
	}
}

// OnUpdate passes a changed object on. An object that is not selected any more is removed. A
// resync, without a change, is ignored.
func (e events[T]) OnUpdate(before, now any) {
	t, ok := e.read(now)
	if !ok || before == now {
		return
	}
	e.OnAdd(t, false)
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
			e.forget(e.generation, types.NamespacedName{Namespace: name.Namespace, Name: name.Name}, true)
			return
		}
	}
	if t, ok := e.read(o); ok {
		e.forget(e.generation, nameOf(t), true)
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
