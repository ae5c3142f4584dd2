package kubewatch

import (
	"net/netip"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// inventory has the objects of one kind that event handlers have passed on. Only the newest event handler
// may change it: events of a former informer may still arrive, and are out of date.
type inventory struct {
	mu         sync.Mutex
	generation int                          // of the newest event handler, from 1
	known      map[types.NamespacedName]int // the generation that has passed the object on last
	remove     func(types.NamespacedName)
	isComplete bool // the newest event handler has passed on all that existed at the start
	// isRelisted says that a successor begins with a new list of the same objects, so that what was complete stays so.
	isRelisted bool
}

// next returns the generation of a new event handler.
func (k *inventory) next(remove func(types.NamespacedName)) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.generation++; k.known == nil {
		k.known = map[types.NamespacedName]int{}
	}
	k.remove, k.isComplete = remove, k.isComplete && k.isRelisted
	return k.generation
}

// restart begins a Run of a Watcher, whose lists follow each other.
func (k *inventory) restart() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.isComplete, k.isRelisted = false, true
}

// newest returns the generation of the newest event handler, 0 without one.
func (k *inventory) newest() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.generation
}

// passOn calls update for an object, unless the event handler has a successor.
func (k *inventory) passOn(generation int, name types.NamespacedName, update func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if generation == k.generation {
		k.known[name] = generation
		update()
	}
}

// forget removes an object that is known, or must be gone, unless the event handler has a successor.
func (k *inventory) forget(generation int, name types.NamespacedName, isGone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, isKnown := k.known[name]; generation == k.generation && (isKnown || isGone) {
		delete(k.known, name)
		k.remove(name)
	}
}

// removeFormer removes the objects that the event handler of a generation, which has synced, has not
// passed on. It returns false, and removes nothing, if the event handler has a successor.
func (k *inventory) removeFormer(at int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if at != k.generation {
		return false
	}
	for name, generation := range k.known {
		if generation < at {
			delete(k.known, name)
			k.remove(name)
		}
	}
	k.isComplete = at > 0
	return true
}

// hasAny reports whether the event handler of a generation has passed on an object that still exists.
func (k *inventory) hasAny(at int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, generation := range k.known {
		if generation == at {
			return true
		}
	}
	return false
}

// addresses are the ClusterIPs of Services for other proxies. The lock of the inventory of these
// Services guards them.
type addresses struct {
	services map[types.NamespacedName][]netip.Addr
	count    map[netip.Addr]int
}

func (a *addresses) update(s *v1.Service) {
	a.remove(nameOf(s))
	if a.count == nil {
		a.services, a.count = map[types.NamespacedName][]netip.Addr{}, map[netip.Addr]int{}
	}
	all := clusterIPs(&s.Spec)
	a.services[nameOf(s)] = all
	for _, ip := range all {
		a.count[ip]++
	}
}

func (a *addresses) remove(name types.NamespacedName) {
	for _, ip := range a.services[name] {
		if a.count[ip]--; a.count[ip] == 0 {
			delete(a.count, ip)
		}
	}
	delete(a.services, name)
}

// clusterIPs returns the addresses of a Service, perhaps twice.
func clusterIPs(s *v1.ServiceSpec) (all []netip.Addr) {
	for _, text := range append([]string{s.ClusterIP}, s.ClusterIPs...) {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
