package sidebyside

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

const (
	nodeName = "here"
	nodeIP   = "192.0.2.1"
	podRange = "10.128.0.0/9"
	// servicePort is the port of each Service.
	servicePort = 80
	// endpointsEach is how many endpoints a Service has, of which one in a hundred is
	// on this node.
	endpointsEach = 10
)

// world is a cluster of equal Services with one EndpointSlice each.
type world struct {
	services []*v1.Service
	slices   []*discoveryv1.EndpointSlice
	// last is the number of the newest endpoint.
	last uint32
}

func newWorld(services int) *world {
	w := &world{}
	for range services {
		w.add()
	}
	return w
}

// add adds a Service with its slice, and gives both.
func (w *world) add() (*v1.Service, *discoveryv1.EndpointSlice) {
	n := uint32(len(w.services))
	name := fmt.Sprintf("service-%05d", n)
	s := objects.Service(name, clusterIP(n).String(), func(s *v1.Service) {
		s.UID, s.Spec.IPFamilies = "1", []v1.IPFamily{v1.IPv4Protocol}
		s.Spec.SessionAffinity, s.Spec.InternalTrafficPolicy = v1.ServiceAffinityNone, new(v1.ServiceInternalTrafficPolicyCluster)
	})
	slice := objects.Slice(name+"-1", name)
	for range endpointsEach {
		slice.Endpoints = append(slice.Endpoints, w.endpoint())
	}
	w.services, w.slices = append(w.services, s), append(w.slices, slice)
	return s, slice
}

// clusterIP returns the address of a Service.
func clusterIP(n uint32) netip.Addr { return address(10<<24 | 64<<16 | (n + 1)) }

// endpoint returns a new endpoint.
func (w *world) endpoint() discoveryv1.Endpoint {
	w.last++
	node := fmt.Sprintf("node-%d", w.last%100)
	if w.last%100 == 0 {
		node = nodeName
	}
	e := objects.Endpoint(address(10<<24|128<<16|w.last).String() + " @" + node)
	e.Conditions.Ready = new(true)
	return e
}

// replace replaces the first endpoint of a slice, and gives the old and the new slice, as an
// informer would.
func (w *world) replace(i int) (old, now *discoveryv1.EndpointSlice) {
	old, now = w.slices[i], w.slices[i].DeepCopy()
	now.Endpoints[0] = w.endpoint()
	w.slices[i] = now
	return old, now
}

// annotate changes an annotation of a slice, and not its endpoints.
func (w *world) annotate(i int) (old, now *discoveryv1.EndpointSlice) {
	old, now = w.slices[i], w.slices[i].DeepCopy()
	now.Annotations = map[string]string{"changed": now.Annotations["changed"] + "."}
	w.slices[i] = now
	return old, now
}

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
