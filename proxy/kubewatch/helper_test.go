package kubewatch

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/proxy"
)

var _ Handler = (*proxy.ServiceChangeTracker)(nil)

// state is what a handler has received.
type state struct {
	services, slices map[string]string // by name, the ClusterIP or first address
	zone             string
	cidrs            []netip.Prefix
	synced           int
	// updates and removals count the calls.
	updates, removals int
	// early counts the objects, and earlyRanges the ranges, when Synced was called.
	early, earlyRanges int
}

// limit bounds every wait. Tests that wait for retries do so in the time of synctest.
const limit = time.Hour

// recorder is a handler that records what it receives.
type recorder struct {
	mu      sync.Mutex
	state   state
	changed chan struct{}
}

func newRecorder() *recorder {
	return &recorder{state: state{services: map[string]string{}, slices: map[string]string{}}, changed: make(chan struct{}, 1)}
}

func (r *recorder) note(f func(s *state)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.state)
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *recorder) UpdateService(o *v1.Service) {
	r.note(func(s *state) { s.updates++; s.services[o.Name] = o.Spec.ClusterIP })
}

func (r *recorder) DeleteService(n types.NamespacedName) {
	r.note(func(s *state) { s.removals++; delete(s.services, n.Name) })
}

func (r *recorder) UpdateEndpointSlice(o *discoveryv1.EndpointSlice) {
	r.note(func(s *state) { s.updates++; s.slices[o.Name] = o.Endpoints[0].Addresses[0] })
}

func (r *recorder) DeleteEndpointSlice(n types.NamespacedName) {
	r.note(func(s *state) { s.removals++; delete(s.slices, n.Name) })
}

func (r *recorder) UpdateNode(o *v1.Node) {
	r.note(func(s *state) {
		if o == nil {
			s.removals++
			s.zone = ""
			return
		}
		s.updates++
		s.zone = o.Labels[v1.LabelTopologyZone]
	})
}

func (r *recorder) UpdateServiceCIDRs(all []netip.Prefix) {
	r.note(func(s *state) { s.cidrs = all })
}

func (r *recorder) Synced() {
	r.note(func(s *state) {
		s.synced++
		s.early, s.earlyRanges = len(s.services)+len(s.slices), len(s.cidrs)
		if s.zone != "" {
			s.early++
		}
	})
}

func (r *recorder) get() state {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.state
	s.services, s.slices = maps.Clone(s.services), maps.Clone(s.slices)
	return s
}

// until waits until the state satisfies isSo.
func (r *recorder) until(t testing.TB, what string, isSo func(*state) bool) {
	t.Helper()
	late := time.After(limit)
	for {
		now := r.get()
		if isSo(&now) {
			return
		}
		select {
		case <-r.changed:
		case <-late:
			t.Fatalf("%s: not within %v, the handler has %+v", what, limit, now)
		}
	}
}

// start runs a source until the test ends.
func start(t testing.TB, s *Watcher) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v, want no error", err)
		}
	})
}

func service(name, clusterIP string) *v1.Service { return objects.Service("test/"+name, clusterIP) }

func slice(name, addr string) *discoveryv1.EndpointSlice {
	return objects.Slice("test/"+name, "web", addr)
}

func cidr(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}
