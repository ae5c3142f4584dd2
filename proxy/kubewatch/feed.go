package kubewatch

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// object is an API object that is watched.
type object interface {
	runtime.Object
	metav1.Object
}

// list is the list of these objects.
type list interface {
	runtime.Object
	metav1.ListInterface
}

// feedOptions says what to watch, and which event handlers receive it.
type feedOptions[T object, L list] struct {
	list           func(context.Context, metav1.ListOptions) (L, error)
	watch          func(context.Context, metav1.ListOptions) (watch.Interface, error)
	labels, fields string
	client         any // may say that it cannot stream lists
	events         func() cache.ResourceEventHandler
	inventories    []*inventory // by the event handlers
	// isOptional says that the API server may not have this kind of objects, or may
	// forbid this client to list them.
	isOptional bool
}

// feed is the watch of one kind of objects. It is the store of its reflector, passes objects on and keeps only their
// names. The reflector calls it from one goroutine.
type feed struct {
	lister      cache.ListerWatcher
	kind        object
	events      func() cache.ResourceEventHandler
	inventories []*inventory
	newest      cache.ResourceEventHandler
	// synced is called when the first list has been passed on, or when the API server
	// refuses an optional one; perhaps more than once. It is set before run.
	synced func()
}

func newFeed[T object, L list](o feedOptions[T, L], to *reach, report func(error)) *feed {
	var kind T
	f := &feed{kind: kind, events: o.events, inventories: o.inventories}
	check := func(ctx context.Context, verb string, err error) error {
		if err != nil {
			err = fmt.Errorf("kubewatch: %s %T: %w", verb, kind, withoutQuery(err))
		}
		if ctx.Err() == nil && to.answered(err) {
			report(err)
		}
		if o.isOptional && isRefusal(err) {
			f.synced()
		}
		return err
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector, options.FieldSelector = o.labels, o.fields
			return untilReached(ctx, func() (runtime.Object, error) {
				list, err := o.list(ctx, options)
				if err == nil {
					err = checkList(list)
				}
				return list, check(ctx, "list", err)
			})
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector, options.FieldSelector = o.labels, o.fields
			return untilReached(ctx, func() (watch.Interface, error) { return o.open(ctx, options, check) })
		},
	}
	f.lister = cache.ToListWatcherWithWatchListSemantics(lw, o.client)
	return f
}

// open begins a watch. It does not report that an API server cannot stream lists: the
// reflector falls back to an ordinary list.
func (o *feedOptions[T, L]) open(ctx context.Context, options metav1.ListOptions, check func(context.Context, string, error) error) (watch.Interface, error) {
	w, err := o.watch(ctx, options)
	if options.SendInitialEvents != nil && apierrors.IsInvalid(err) {
		return w, err
	}
	return w, check(ctx, "watch", err)
}

var errNoList = errors.New("the response has no resource version: it does not come from an API server; check the address and proxies between")

// checkList refuses JSON that is no list, which a client takes for an empty one: the response
// of a proxy between it and the API server must not delete all Services.
func checkList(l metav1.ListInterface) error {
	if l.GetResourceVersion() == "" {
		return errNoList
	}
	return nil
}

// isRefusal reports whether the API server refuses a request permanently.
func isRefusal(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)
}

// run watches until ctx ends.
func (f *feed) run(ctx context.Context) {
	cache.NewReflectorWithOptions(f.lister, f.kind, f, cache.ReflectorOptions{
		Name: fmt.Sprintf("kubewatch %T", f.kind),
	}).RunWithContext(ctx)
}

// Replace passes on all objects that exist to a new event handler, and removes the others.
func (f *feed) Replace(all []any, _ string) error {
	f.newest = f.events()
	for _, o := range all {
		f.newest.OnAdd(o, true)
	}
	for _, k := range f.inventories {
		k.removeFormer(k.newest())
	}
	f.synced()
	return nil
}

// Add passes on a new object.
func (f *feed) Add(o any) error { return f.Update(o) }

// Update passes on an object that is new or has changed.
func (f *feed) Update(o any) error { f.newest.OnAdd(o, false); return nil }

// Delete removes an object.
func (f *feed) Delete(o any) error { f.newest.OnDelete(o); return nil }

// Resync has nothing to do: there is no cache that a handler could differ from.
func (f *feed) Resync() error { return nil }

// Transformer returns what is applied to objects that wait for the end of a streamed list.
func (f *feed) Transformer() cache.TransformFunc { return strip }

// strip removes the large fields that no service proxy needs. Other annotations stay:
// a handler may select Services by them, and must decide the same at the next update.
func strip(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
		delete(m.GetAnnotations(), v1.LastAppliedConfigAnnotation)
	}
	switch o := o.(type) {
	case *v1.Node:
		o.Status.Images, o.Status.Conditions = nil, nil
	case *discoveryv1.EndpointSlice:
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			e.TargetRef, e.Hostname, e.DeprecatedTopology = nil, nil, nil
		}
	}
	return o, nil
}
