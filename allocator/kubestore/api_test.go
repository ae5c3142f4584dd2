package kubestore_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/allocator/kubestore"
)

var errLost = errors.New("the connection was lost")

// object is an API object with its metadata.
type object interface {
	runtime.Object
	metav1.Object
}

// event is a change of an object, with the object after it.
type event struct {
	kind     watch.EventType
	resource string
	object   object
	version  int
}

// api is a fake of the parts of an API server that the store needs: names are unique,
// every change has a version, and preconditions are checked.
type api struct {
	mu           sync.Mutex
	version      int
	oldest       int // watches from earlier versions get the error "too old"
	objects      map[string]map[string]object
	events       []event
	watches      map[*watcher]string  // by resource
	started      int                  // number of watches, ever
	endsWatches  bool                 // watches end as soon as they begin
	watchOptions []metav1.ListOptions // of all watches
	client       networkingclient.NetworkingV1Interface
	hooks
}

// hooks change how the fake handles requests.
type hooks struct {
	// lose says for each request whether it is lost, or its reply; loseOf, unless nil,
	// does so for requests about one object.
	lose   func(verb string) (request, reply bool)
	loseOf func(name, verb string) (request, reply bool)
	// wait is called before a request about the object of a name is sent, and may block.
	wait func(name string)
	// before is called before a request is handled. The client handles one request at a
	// time.
	before func(action clienttesting.Action)
	// pageSize, unless 0, is how many objects a page of a limited list has.
	pageSize int
	// mangle, unless nil, changes replies.
	mangle func(runtime.Object)
	// watchErr is the error of each watch, firstEvent the first event of each.
	watchErr   error
	firstEvent watch.Event
}

func newAPI() (*api, networkingclient.NetworkingV1Interface) {
	a := &api{
		version: 100, objects: map[string]map[string]object{"ipaddresses": {}, "servicecidrs": {}},
		watches: map[*watcher]string{},
		hooks: hooks{
			lose:   func(string) (bool, bool) { return false, false },
			before: func(clienttesting.Action) {},
			wait:   func(string) {},
		},
	}
	client := fake.NewClientset()
	client.PrependReactor("*", "*", a.react)
	client.PrependWatchReactor("*", a.watch)
	a.client = contextClient{client.NetworkingV1(), a}
	return a, a.client
}

func newStore(t testing.TB) (*api, *kubestore.Store) {
	t.Helper()
	a, client := newAPI()
	return a, kubestore.New(client, kubestore.Options{})
}

// watcher is a watch with a buffer that is large enough that send does not block.
type watcher struct {
	events chan watch.Event
	mu     sync.Mutex
	ended  bool
}

func newWatcher() *watcher { return &watcher{events: make(chan watch.Event, 10_000)} }

func (w *watcher) ResultChan() <-chan watch.Event { return w.events }

func (w *watcher) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.ended = true
		close(w.events)
	}
}

func (w *watcher) send(kind watch.EventType, o runtime.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.events <- watch.Event{Type: kind, Object: o}
	}
}

// faults loses requests and replies, each with a probability.
func faults(rnd *rand.Rand, p float64) func(string) (bool, bool) {
	return func(string) (bool, bool) { return rnd.Float64() < p, rnd.Float64() < p }
}

func (a *api) react(action clienttesting.Action) (bool, runtime.Object, error) {
	a.before(action)
	a.mu.Lock()
	defer a.mu.Unlock()
	losesRequest, losesReply := a.lose(action.GetVerb())
	if name := nameOf(action); a.loseOf != nil && name != "" {
		losesRequest, losesReply = a.loseOf(name, action.GetVerb())
	}
	if losesRequest {
		return true, nil, errLost
	}
	result, err := a.answer(action)
	if losesReply {
		return true, nil, errLost
	}
	if a.mangle != nil && err == nil && result != nil {
		a.mangle(result)
	}
	return true, result, err
}

func (a *api) answer(action clienttesting.Action) (runtime.Object, error) {
	resource := action.GetResource()
	group := resource.GroupResource()
	objects, isKnown := a.objects[resource.Resource]
	if !isKnown {
		return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, action.GetVerb(), group, "", "", 0, false)
	}
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		return a.create(group, action.GetObject())
	case clienttesting.UpdateActionImpl:
		return a.update(group, action.GetObject())
	case clienttesting.DeleteActionImpl:
		return nil, a.remove(group, action.Name, action.DeleteOptions.Preconditions)
	case clienttesting.GetActionImpl:
		if o := objects[action.Name]; o != nil {
			return o.DeepCopyObject(), nil
		}
		return nil, apierrors.NewNotFound(group, action.Name)
	case clienttesting.ListActionImpl:
		return a.list(resource.Resource, action.ListOptions)
	}
	return nil, fmt.Errorf("the fake API server does not support %T", action)
}

func asObject(o runtime.Object) object {
	m, ok := o.(object)
	if !ok {
		panic(fmt.Sprintf("%T has no metadata", o))
	}
	return m
}

// record records a change and sends it to the watches.
func (a *api) record(kind watch.EventType, group schema.GroupResource, o object) {
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	e := event{kind, group.Resource, o, a.version}
	a.events = append(a.events, e)
	for w, resource := range a.watches {
		if resource == group.Resource {
			w.send(kind, o.DeepCopyObject())
		}
	}
}

func (a *api) create(group schema.GroupResource, sent runtime.Object) (runtime.Object, error) {
	o := asObject(sent.DeepCopyObject())
	if a.objects[group.Resource][o.GetName()] != nil {
		return nil, apierrors.NewAlreadyExists(group, o.GetName())
	}
	o.SetUID(types.UID("uid-" + strconv.Itoa(a.version)))
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	a.record(watch.Added, group, o)
	a.objects[group.Resource][o.GetName()] = o
	return o.DeepCopyObject(), nil
}

func (a *api) update(group schema.GroupResource, sent runtime.Object) (runtime.Object, error) {
	o := asObject(sent.DeepCopyObject())
	old := a.objects[group.Resource][o.GetName()]
	switch {
	case old == nil:
		return nil, apierrors.NewNotFound(group, o.GetName())
	case old.GetResourceVersion() != o.GetResourceVersion():
		return nil, apierrors.NewConflict(group, o.GetName(), errors.New("it was changed"))
	case old.GetUID() != o.GetUID():
		return nil, apierrors.NewConflict(group, o.GetName(), errors.New("it is another one"))
	case !isSameParent(old, o):
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: group.Group, Kind: "IPAddress"}, o.GetName(), nil)
	}
	a.record(watch.Modified, group, o)
	a.objects[group.Resource][o.GetName()] = o
	return o.DeepCopyObject(), nil
}

func (a *api) remove(group schema.GroupResource, name string, p *metav1.Preconditions) error {
	old := a.objects[group.Resource][name]
	switch {
	case old == nil:
		return apierrors.NewNotFound(group, name)
	case p != nil && (*p.UID != old.GetUID() || *p.ResourceVersion != old.GetResourceVersion()):
		return apierrors.NewConflict(group, name, errors.New("it was changed"))
	}
	delete(a.objects[group.Resource], name)
	a.record(watch.Deleted, group, asObject(old.DeepCopyObject()))
	return nil
}

func (a *api) list(resource string, o metav1.ListOptions) (runtime.Object, error) {
	names := slices.Sorted(maps.Keys(a.objects[resource]))
	about := metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}
	if version, after, isNext := strings.Cut(o.Continue, "/"); isNext {
		if n, _ := strconv.Atoi(version); n < a.oldest {
			return nil, apierrors.NewResourceExpired("the list is too old")
		}
		names = slices.DeleteFunc(names, func(name string) bool { return name <= after })
	}
	if o.Limit > 0 && a.pageSize > 0 && len(names) > a.pageSize {
		names = names[:a.pageSize]
		about.Continue = about.ResourceVersion + "/" + names[len(names)-1]
	}
	var items []runtime.Object
	for _, name := range names {
		items = append(items, a.objects[resource][name].DeepCopyObject())
	}
	var list interface {
		runtime.Object
		metav1.ListInterface
	} = &networkingv1.IPAddressList{}
	if resource == "servicecidrs" {
		list = &networkingv1.ServiceCIDRList{}
	}
	list.SetResourceVersion(about.ResourceVersion)
	list.SetContinue(about.Continue)
	return list, meta.SetList(list, items)
}

func (a *api) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := newWatcher()
	resource := action.GetResource().Resource
	from := 0
	if restricted, ok := action.(clienttesting.WatchActionImpl); ok && restricted.ListOptions.ResourceVersion != "" {
		var err error
		if from, err = strconv.Atoi(restricted.ListOptions.ResourceVersion); err != nil {
			return true, nil, err
		}
		a.watchOptions = append(a.watchOptions, restricted.ListOptions)
	}
	if a.watchErr != nil {
		return true, nil, a.watchErr
	}
	if a.firstEvent.Object != nil {
		w.send(a.firstEvent.Type, a.firstEvent.Object)
	}
	if from > 0 && from < a.oldest {
		w.send(watch.Error, &apierrors.NewResourceExpired("too old").ErrStatus)
		return true, w, nil
	}
	for _, e := range a.events {
		if e.resource == resource && e.version > from {
			w.send(e.kind, e.object.DeepCopyObject())
		}
	}
	a.started++
	if a.endsWatches {
		w.Stop()
	}
	a.watches[w] = resource
	return true, w, nil
}

// disconnect ends all watches.
func (a *api) disconnect() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.watches {
		w.Stop()
		delete(a.watches, w)
	}
}

// forget makes all versions before now too old to watch from.
func (a *api) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.oldest = a.version
}

// foreign makes an object as the API server's own allocator does.
func foreign(name, service string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: "default", Name: service,
		}},
	}
}

// put makes an object.
func (a *api) put(t testing.TB, resource string, o runtime.Object) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.create(networkingv1.Resource(resource), o); err != nil {
		t.Fatal(err)
	}
}

// addresses returns the IPAddress objects by name.
func (a *api) addresses() map[string]*networkingv1.IPAddress {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]*networkingv1.IPAddress{}
	for name, o := range a.objects["ipaddresses"] {
		if address, ok := o.DeepCopyObject().(*networkingv1.IPAddress); ok {
			all[name] = address
		}
	}
	return all
}

// removeSilently deletes an object without an event.
func (a *api) removeSilently(resource, name string) {
	a.mu.Lock()
	delete(a.objects[resource], name)
	a.mu.Unlock()
	a.forget()
}
