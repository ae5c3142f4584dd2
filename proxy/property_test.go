package proxy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/objects"
)

// world makes random objects out of few names and addresses, so that they conflict, and
// has the current ones.
type world struct {
	objects.Generator
	services map[string]*v1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	node     *v1.Node
}

func newWorld(seed uint64) *world {
	w := &world{services: map[string]*v1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{}}
	w.Generator = objects.Generator{
		Rand: rand.New(rand.NewPCG(seed, 1)), Unusual: []int{0, 3, 20}[seed%3], Scarce: true, Node: "here", Annotations: []string{"scheduler", "preserve", "unlisted"},
	}
	return w
}

func oneOf[T any](w *world, list ...T) T { return objects.OneOf(w.Rand, list...) }

// step changes one object, also in the tracker.
func (w *world) step(tr *ServiceChangeTracker) {
	switch name := oneOf(w, "a", "b", "c", "d"); w.IntN(10) {
	case 0, 1, 2:
		w.services[name] = w.Service("ns/"+name, w.services[name])
		tr.UpdateService(w.services[name])
	case 3:
		delete(w.services, name)
		tr.DeleteService(objectName(name))
	case 4, 5, 6, 7:
		w.slices[name] = w.Slice("ns/"+name, w.slices[name])
		tr.UpdateEndpointSlice(w.slices[name])
	case 8:
		delete(w.slices, name)
		tr.DeleteEndpointSlice(objectName(name))
	case 9:
		w.node = w.RandomNode()
		tr.UpdateNode(w.node)
	}
}

// addAll adds the current objects to a tracker, in random order.
func (w *world) addAll(tr *ServiceChangeTracker) {
	var calls []func()
	for _, s := range w.services {
		calls = append(calls, func() { tr.UpdateService(s) })
	}
	for _, s := range w.slices {
		calls = append(calls, func() { tr.UpdateEndpointSlice(s) })
	}
	if w.node != nil {
		calls = append(calls, func() { tr.UpdateNode(w.node) })
	}
	w.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	for _, call := range calls {
		call()
	}
	tr.Synced()
}

func (w *world) deleteAll(tr *ServiceChangeTracker) {
	for name := range w.services {
		tr.DeleteService(objectName(name))
	}
	for name := range w.slices {
		tr.DeleteEndpointSlice(objectName(name))
	}
	tr.UpdateNode(objects.Node("here", ""))
}

func (w *world) options() TrackerOptions {
	return TrackerOptions{
		NodeName:          "here",
		NodeAddresses:     oneOf(w, nil, []netip.Addr{netip.MustParseAddr("192.168.0.7")}),
		NodePortAddresses: oneOf(w, NodePortAddresses{}, NodePortAddresses{All: true}, NodePortAddresses{Prefixes: prefixes("192.0.2.0/24")}),
		LocalTraffic:      oneOf(w, LocalTraffic{}, LocalTraffic{NodePodCIDRs: true}, LocalTraffic{Sources: prefixes("10.0.0.0/8")}),
		ServiceCIDRs:      oneOf(w, nil, prefixes("10.96.0.0/16", "fd00:96::/112")),
		MasqueradeAll:     w.Chance(5),
		IgnoreExternalIPs: w.Chance(5),
		LocalFallback:     oneOf(w, endpoints.FallbackTerminating, endpoints.FallbackNone, endpoints.FallbackCluster),
		Annotations:       oneOf(w, nil, []string{"scheduler"}, []string{"scheduler", "preserve"}),
	}
}

// kept is a snapshot with its fingerprint at the time when it was made.
type kept struct {
	snapshot Snapshot
	print    [32]byte
}

// TestHistoriesDoNotMatter: the content of a snapshot depends on the objects alone, not on
// the order of their changes; and snapshots do not change.
func TestHistoriesDoNotMatter(t *testing.T) {
	for seed := range uint64(150) {
		w := newWorld(seed)
		options := w.options()
		tr := NewServiceChangeTracker(options)
		tr.Synced()
		var last Snapshot
		var handedOut []kept
		for range 60 {
			w.step(tr)
			if w.Chance(2) {
				continue
			}
			s := newest(t, tr)
			checkChanges(t, last, s)
			last = s
			handedOut = append(handedOut, kept{s, fingerprint(s)})
			fresh := NewServiceChangeTracker(options)
			w.addAll(fresh)
			for _, d := range differences(s, newest(t, fresh)) {
				t.Error(d)
			}
		}
		for _, k := range handedOut {
			if fingerprint(k.snapshot) != k.print {
				t.Errorf("generation %d has changed after Next returned it", k.snapshot.Generation())
			}
		}
		w.deleteAll(tr)
		checkEmpty(t, tr)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// checkChanges compares Changes with a comparison of every port.
func checkChanges(t *testing.T, old, now Snapshot) {
	t.Helper()
	got := map[ServicePortName]Change{}
	var order []ServicePortName
	for c := range now.Changes(old) {
		name := c.New
		if name == nil {
			name = c.Old
		}
		if c.Old.Equal(c.New) {
			t.Errorf("%s: got a change without difference", name.Name)
		}
		got[name.Name] = c
		order = append(order, name.Name)
	}
	if !slices.IsSortedFunc(order, ServicePortName.Compare) {
		t.Errorf("changes: got order %v, want name order", order)
	}
	for p := range old.All() {
		n, _ := now.Get(p.Name)
		if c := got[p.Name]; !p.Equal(n) && (c.Old != p || c.New != n) {
			t.Errorf("%s: got change %+v, want from %+v to %+v", p.Name, c, p, n)
		}
	}
	for p := range now.All() {
		if _, ok := old.Get(p.Name); !ok && got[p.Name].New != p {
			t.Errorf("%s: got change %+v, want that it was added", p.Name, got[p.Name])
		}
	}
}
