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

// cluster is what an API server would have.
type cluster struct {
	services map[types.NamespacedName]*v1.Service
	slices   map[types.NamespacedName]*discoveryv1.EndpointSlice
	node     *v1.Node
}

func newCluster() *cluster {
	return &cluster{services: map[types.NamespacedName]*v1.Service{}, slices: map[types.NamespacedName]*discoveryv1.EndpointSlice{}}
}

// watcher is told of every change. The old object is nil for one that is new, the new
// one nil for one that is gone. Nobody changes an object.
type watcher interface {
	service(old, now *v1.Service)
	slice(old, now *discoveryv1.EndpointSlice)
	nodeChanged(now *v1.Node)
}

// generator makes random objects, and random changes of a cluster. What it makes is as
// the API server would take it, but for one field in odd, on average.
type generator struct {
	*rand.Rand
	*cluster
	odd int // zero for never
	// balanced makes most Services load balancers with a health check node port, and
	// most endpoints local ones of TCP.
	balanced bool
	log      []event
}

// event is a change, for those who must find out what happened. A nil object is gone.
type event struct {
	what   string
	object any
}

// String gives the change with what matters of the object.
func (e event) String() string {
	text, err := json.Marshal(e.object)
	if err != nil {
		return err.Error()
	}
	return e.what + " " + string(text)
}

// oneOf gives one of a list.
func oneOf[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

// oftenIfBalanced gives the first value most of the time where balanced is set.
func oftenIfBalanced[T any](g *generator, balanced T, list ...T) T {
	if g.balanced && !g.chance(6) {
		return balanced
	}
	return oneOf(g, list...)
}

// chance is true once in so many times, on average.
func (g *generator) chance(in int) bool { return g.IntN(in) == 0 }

// oddly gives one of the odd values now and then, and otherwise the ordinary one.
func oddly[T any](g *generator, ordinary T, odd ...T) T {
	if g.odd > 0 && g.chance(g.odd) {
		return oneOf(g, odd...)
	}
	return ordinary
}

// change makes one change, and tells the watchers.
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
	g.tellService(all, name, old, g.newService(name, old))
}

func (g *generator) deleteService(all []watcher) {
	name := g.serviceName()
	if old := g.services[name]; old != nil {
		g.tellService(all, name, old, nil)
	}
}

func (g *generator) tellService(all []watcher, name types.NamespacedName, old, now *v1.Service) {
	put(g, g.services, name, now)
	for _, w := range all {
		w.service(old, now)
	}
}

// put takes an object into the cluster, or nil out of it, and notes it by its kind.
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
	g.tellSlice(all, name, old, g.newSlice(name, old))
}

func (g *generator) deleteSlice(all []watcher) {
	for name, old := range g.anySlice() {
		g.tellSlice(all, name, old, nil)
	}
}

// anySlice yields one slice, if there is any. The order of a map is no random number
// that a seed repeats.
func (g *generator) anySlice() func(func(types.NamespacedName, *discoveryv1.EndpointSlice) bool) {
	name := types.NamespacedName{Namespace: oneOf(g, "north", "south"), Name: fmt.Sprintf("slice-%d", g.IntN(6))}
	return func(yield func(types.NamespacedName, *discoveryv1.EndpointSlice) bool) {
		if old := g.slices[name]; old != nil {
			yield(name, old)
		}
	}
}

func (g *generator) tellSlice(all []watcher, name types.NamespacedName, old, now *discoveryv1.EndpointSlice) {
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
		// This is how zones were called once.
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

// story gives all changes, one a line.
func (g *generator) story() string {
	var b strings.Builder
	for _, e := range g.log {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// age gives one of a few points in time: many objects are as old as others.
func (g *generator) age() metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, 1, 0, 0, g.IntN(3), 0, time.UTC))
}
