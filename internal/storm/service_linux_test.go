package storm

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// spec describes a Service in a step of a history. The Service's number determines its name
// and addresses.
type spec struct {
	Type v1.ServiceType `json:"type"`
	// Internal and External say that the policy is Local.
	Internal   bool  `json:"internal,omitempty"`
	External   bool  `json:"external,omitempty"`
	Ranges     int   `json:"ranges,omitempty"`   // which of sourceRanges; 0: none
	Affinity   int32 `json:"affinity,omitempty"` // seconds
	ExternalIP bool  `json:"externalIP,omitempty"`
	// Local and Remote are the numbers of endpoints on the node and on another node.
	// First is the number of the first endpoint.
	Local  int `json:"local,omitempty"`
	Remote int `json:"remote,omitempty"`
	First  int `json:"first,omitempty"`
}

const (
	maxServices  = 31
	maxEndpoints = 2040
	// sliceSize is the largest number of endpoints of an EndpointSlice.
	sliceSize     = 100
	firstNodePort = 30000
)

// sourceRanges returns one of the lists of source ranges that Services may have. The first
// two overlap. Each client outside of the cluster is either in both or in neither.
func sourceRanges(choice int, family v1.IPFamily) []string {
	all := [][]string{nil, {"192.0.2.0/24"}, {"192.0.2.0/25"}, {"198.51.100.0/24", "10.2.0.0/16"}}
	if family == v1.IPv6Protocol {
		all = [][]string{nil, {"2001:db8:1::/112"}, {"2001:db8:1::/113"}, {"2001:db8:2::/112", "fd00:10:2::/112"}}
	}
	return all[choice%len(all)]
}

// familyOf returns the family of a Service: every third one has IPv6.
func familyOf(number int) v1.IPFamily {
	if number%3 == 2 {
		return v1.IPv6Protocol
	}
	return v1.IPv4Protocol
}

// ofFamily returns prefix i of a leaf among those of a family.
func ofFamily(leaf string, family v1.IPFamily, i int) netip.Prefix {
	for _, p := range prefixes(leaf) {
		if ipaddr.FamilyOf(p.Addr()) != family {
			continue
		}
		if i == 0 {
			return p
		}
		i--
	}
	return netip.Prefix{}
}

func serviceName(number int) types.NamespacedName {
	return types.NamespacedName{Namespace: "storm", Name: fmt.Sprintf("service-%d", number)}
}

// service returns the Service with a number.
func (s *spec) service(number int) *v1.Service {
	family := familyOf(number)
	address := func(i, n int) string { return nth(ofFamily(atRemote, family, i), n).String() }
	out := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: serviceName(number).Namespace, Name: serviceName(number).Name},
		Spec: v1.ServiceSpec{
			Type: s.Type, ClusterIP: address(1, 256+number), ClusterIPs: []string{address(1, 256+number)}, IPFamilies: []v1.IPFamily{family},
			LoadBalancerSourceRanges: sourceRanges(s.Ranges, family),
		},
	}
	if s.Internal {
		out.Spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicyLocal)
	}
	if s.Type != v1.ServiceTypeClusterIP || s.ExternalIP {
		out.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
		if s.External {
			out.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		}
	}
	if s.ExternalIP {
		out.Spec.ExternalIPs = []string{address(2, number)}
	}
	if s.Type == v1.ServiceTypeLoadBalancer {
		out.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: address(2, 128+number)}}
	}
	if s.Affinity > 0 {
		out.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		out.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &s.Affinity}}
	}
	for _, p := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		port := v1.ServicePort{Name: string(p), Protocol: p, Port: servicePort}
		if s.Type != v1.ServiceTypeClusterIP {
			port.NodePort = int32(firstNodePort + number)
		}
		out.Spec.Ports = append(out.Spec.Ports, port)
	}
	return out
}

// slices returns the EndpointSlices of a Service.
func (s *spec) slices(number int) []*discoveryv1.EndpointSlice {
	family := familyOf(number)
	var all []discoveryv1.Endpoint
	add := func(leaf, node string, n int) {
		for i := range min(n, maxEndpoints) {
			a := nth(ofFamily(leaf, family, 0), 2+number*(maxEndpoints+8)+(s.First+i)%maxEndpoints)
			all = append(all, discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: &node})
		}
	}
	add(atPods, nodeName, s.Local)
	add(atRemote, "another", s.Remote)
	var out []*discoveryv1.EndpointSlice
	for len(all) > 0 {
		n := min(sliceSize, len(all))
		out = append(out, newSlice(number, len(out), all[:n]))
		all = all[n:]
	}
	return out
}

func newSlice(number, i int, endpoints []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	name := serviceName(number)
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: fmt.Sprintf("%s-%d", name.Name, i),
			Labels: map[string]string{discoveryv1.LabelServiceName: name.Name},
		},
		AddressType: discoveryv1.AddressType(familyOf(number)), Endpoints: endpoints,
	}
	for _, p := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: new(string(p)), Protocol: &p, Port: new(int32(endpointPort))})
	}
	return out
}

const nodeName = "node"

// nodeObject returns the Node in one of its four states.
func nodeObject(state int) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	addrs := nodeAddrs()
	if state&1 == 0 {
		addrs = addrs[:2]
	}
	for _, a := range addrs {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a.String()})
	}
	if state&2 != 0 {
		n.Labels = map[string]string{v1.LabelTopologyZone: "a"}
	}
	return n
}

func trackerOptions() proxy.TrackerOptions {
	pods := parsePrefixes("10.0.0.0/14", "fd00:10::/32")
	return proxy.TrackerOptions{
		NodeName: nodeName, NodePortAddresses: proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: pods},
		ServiceCIDRs: parsePrefixes("10.96.0.0/16", "fd00:96::/112"),
	}
}

// change is a change of Services, by number, and of the Node. A nil spec deletes the
// Service.
type change struct {
	Services map[int]*spec `json:"services,omitempty"`
	Node     *int          `json:"node,omitempty"`
}

// inventory is a tracker to which changes are applied. Each agent has one, and so has the
// storm.
type inventory struct {
	tracker proxy.ServiceChangeTracker
	// changing is held while a change is applied.
	changing sync.Mutex
	slices   map[int]int // number of EndpointSlices of each Service
}

func newInventory(o proxy.TrackerOptions) *inventory {
	return &inventory{tracker: proxy.NewServiceChangeTracker(o), slices: map[int]int{}}
}

// Next implements [proxy.Source]. It returns no snapshot with only a part of a change, as the
// judge has no verdict for such a state.
func (i *inventory) Next(ctx context.Context, after proxy.Snapshot) (proxy.Snapshot, error) {
	if s, err := i.tracker.Next(ctx, after); err != nil {
		return s, err
	}
	i.changing.Lock()
	defer i.changing.Unlock()
	return i.tracker.Next(ctx, proxy.Snapshot{})
}

func (i *inventory) apply(c *change) {
	i.changing.Lock()
	defer i.changing.Unlock()
	if c.Node != nil {
		i.tracker.UpdateNode(nodeObject(*c.Node))
	}
	for _, number := range slices.Sorted(maps.Keys(c.Services)) {
		var parts []*discoveryv1.EndpointSlice
		s := c.Services[number]
		if s == nil {
			i.tracker.DeleteService(serviceName(number))
		} else {
			i.tracker.UpdateService(s.service(number))
			parts = s.slices(number)
		}
		for _, e := range parts {
			i.tracker.UpdateEndpointSlice(e)
		}
		for n := len(parts); n < i.slices[number]; n++ {
			gone := newSlice(number, n, nil)
			i.tracker.DeleteEndpointSlice(types.NamespacedName{Namespace: gone.Namespace, Name: gone.Name})
		}
		i.slices[number] = len(parts)
	}
}
