package differential

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/proxy"
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

// generator makes random changes of a cluster.
type generator struct {
	objects.Generator
	*cluster
	log []event
}

func newGenerator(r *rand.Rand) *generator {
	return &generator{Generator: objects.Generator{Rand: r, Node: nodeName}, cluster: newCluster()}
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
	return types.NamespacedName{Namespace: objects.OneOf(g.Rand, "north", "south"), Name: objects.OneOf(g.Rand, "a", "b", "c")}
}

func (g *generator) putService(all []watcher) {
	name := g.serviceName()
	old := g.services[name]
	g.changeService(all, name, old, g.Service(name.String(), old))
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
	name := types.NamespacedName{Namespace: objects.OneOf(g.Rand, "north", "south"), Name: fmt.Sprintf("slice-%d", g.IntN(6))}
	old := g.slices[name]
	g.changeSlice(all, name, old, g.Slice(name.String(), old))
}

func (g *generator) deleteSlice(all []watcher) {
	for name, old := range g.anySlice() {
		g.changeSlice(all, name, old, nil)
	}
}

// anySlice yields a random slice, or none. It does not use the order of the map, which no
// seed repeats.
func (g *generator) anySlice() func(func(types.NamespacedName, *discoveryv1.EndpointSlice) bool) {
	name := types.NamespacedName{Namespace: objects.OneOf(g.Rand, "north", "south"), Name: fmt.Sprintf("slice-%d", g.IntN(6))}
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
	if g.Chance(5) {
		other := g.RandomNode()
		other.Name = "there"
		g.note("Node", types.NamespacedName{Name: other.Name}, other)
		for _, w := range all {
			w.nodeChanged(other)
		}
		return
	}
	if g.node != nil && g.Chance(10) {
		g.node = nil
	} else {
		g.node = g.RandomNode()
	}
	g.note("Node", types.NamespacedName{Name: nodeName}, g.node)
	for _, w := range all {
		w.nodeChanged(g.node)
	}
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

// portNames returns all ports that a slice can have.
func portNames() []proxy.ServicePortName {
	var all []proxy.ServicePortName
	for i := range 2 * 3 * 4 * 3 * 2 {
		all = append(all, proxy.ServicePortName{
			NamespacedName: types.NamespacedName{Namespace: [...]string{"north", "south"}[i%2], Name: [...]string{"a", "b", "c"}[i/2%3]},
			Port:           [...]string{"web", "dns", "more", ""}[i/6%4],
			Protocol:       [...]v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}[i/24%3],
			Family:         families()[i/72%2],
		})
	}
	return all
}
