package differential

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const nodeName = "here"

// cluster has the objects of an API server.
type cluster struct {
	services map[types.NamespacedName]*v1.Service
	slices   map[types.NamespacedName]*discoveryv1.EndpointSlice
	node     *v1.Node
}

func newCluster() *cluster {
	return &cluster{services: map[types.NamespacedName]*v1.Service{}, slices: map[types.NamespacedName]*discoveryv1.EndpointSlice{}}
}

// watcher gets every change. The old object is nil for an added object, the new one nil
// for a deleted object. Objects are never changed.
type watcher interface {
	service(old, now *v1.Service)
	slice(old, now *discoveryv1.EndpointSlice)
	nodeChanged(now *v1.Node)
}

// generator makes random objects, and random changes of a cluster. An API server would
// accept the objects, except for one field in unusual, on average.
type generator struct {
	*rand.Rand
	*cluster
	unusual int // zero for never
	// balanced makes most Services load balancers with a health check node port, and
	// most endpoints local ones of TCP.
	balanced bool
	log      []event
}

// event is a change, for the log of a failure. A nil object was deleted.
type event struct {
	what   string
	object any
}

// String returns the change with the object as JSON.
func (e event) String() string {
	text, err := json.Marshal(e.object)
	if err != nil {
		return err.Error()
	}
	return e.what + " " + string(text)
}

// oneOf returns a random item of a list.
func oneOf[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

// oftenIfBalanced returns the first value most of the time if g.balanced is set.
func oftenIfBalanced[T any](g *generator, balanced T, list ...T) T {
	if g.balanced && !g.chance(6) {
		return balanced
	}
	return oneOf(g, list...)
}

// chance is true once in the given number of times, on average.
func (g *generator) chance(in int) bool { return g.IntN(in) == 0 }

// usually returns the ordinary value most of the time, and sometimes an unusual one.
func usually[T any](g *generator, ordinary T, unusual ...T) T {
	if g.unusual > 0 && g.chance(g.unusual) {
		return oneOf(g, unusual...)
	}
	return ordinary
}

// change makes one change, and passes it to the watchers.
func (g *generator) change(all ...watcher) {
	switch n := g.IntN(20); {
	case n < 7:
		g.putService(all)
	case n < 9:
		g.deleteService(all)
	case n < 16:
		g.putSlice(all)
	case n < 18:
		g.deleteSlice(all)
	default:
		g.putNode(all)
	}
}

func (g *generator) serviceName() types.NamespacedName {
	return types.NamespacedName{Namespace: oneOf(g, "north", "south"), Name: oneOf(g, "a", "b", "c")}
}

func (g *generator) putService(all []watcher) {
	name := g.serviceName()
	old := g.services[name]
	g.changeService(all, name, old, g.newService(name, old))
}

func (g *generator) deleteService(all []watcher) {
	name := g.serviceName()
	if old := g.services[name]; old != nil {
		g.changeService(all, name, old, nil)
	}
}

func (g *generator) changeService(all []watcher, name types.NamespacedName, old, now *v1.Service) {
	put(g, g.services, name, now)
	for _, w := range all {
		w.service(old, now)
	}
}

// put adds an object to the cluster, or deletes it if now is nil, and logs the change.
func put[T any](g *generator, objects map[types.NamespacedName]*T, name types.NamespacedName, now *T) {
	kind := reflect.TypeFor[T]().Name()
	if now == nil {
		delete(objects, name)
		g.note(kind, name, nil)
		return
	}
	objects[name] = now
	g.note(kind, name, now)
}

func (g *generator) putSlice(all []watcher) {
	name := types.NamespacedName{Namespace: oneOf(g, "north", "south"), Name: fmt.Sprintf("slice-%d", g.IntN(6))}
	old := g.slices[name]
	g.changeSlice(all, name, old, g.newSlice(name, old))
}

func (g *generator) deleteSlice(all []watcher) {
	for name, old := range g.anySlice() {
		g.changeSlice(all, name, old, nil)
	}
}

// anySlice yields a random slice, or none. It does not use the order of the map, which no
// seed repeats.
func (g *generator) anySlice() func(func(types.NamespacedName, *discoveryv1.EndpointSlice) bool) {
	name := types.NamespacedName{Namespace: oneOf(g, "north", "south"), Name: fmt.Sprintf("slice-%d", g.IntN(6))}
	return func(yield func(types.NamespacedName, *discoveryv1.EndpointSlice) bool) {
		if old := g.slices[name]; old != nil {
			yield(name, old)
		}
	}
}

func (g *generator) changeSlice(all []watcher, name types.NamespacedName, old, now *discoveryv1.EndpointSlice) {
	put(g, g.slices, name, now)
	for _, w := range all {
		w.slice(old, now)
	}
}

func (g *generator) putNode(all []watcher) {
	if g.chance(5) {
		other := g.newNode()
		other.Name = "there"
		g.note("Node", types.NamespacedName{Name: other.Name}, other)
		for _, w := range all {
			w.nodeChanged(other)
		}
		return
	}
	if g.node != nil && g.chance(10) {
		g.node = nil
	} else {
		g.node = g.newNode()
	}
	g.note("Node", types.NamespacedName{Name: nodeName}, g.node)
	for _, w := range all {
		w.nodeChanged(g.node)
	}
}

func (g *generator) newNode() *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	if zone := oneOf(g, "a", "a", "b", "", "-"); zone != "-" {
		n.Labels = map[string]string{v1.LabelTopologyZone: zone}
	} else {
		// The former name of the label.
		n.Labels = map[string]string{v1.LabelFailureDomainBetaZone: "a"}
	}
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		if !g.chance(4) {
			n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
		}
	}
	return n
}

func (g *generator) note(kind string, name types.NamespacedName, object any) {
	g.log = append(g.log, event{kind + " " + name.String(), object})
}

// changeLog returns all changes, one in each line.
func (g *generator) changeLog() string {
	var b strings.Builder
	for _, e := range g.log {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// age returns one of a few creation times, so that many objects have the same.
func (g *generator) age() metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, 1, 0, 0, g.IntN(3), 0, time.UTC))
}
