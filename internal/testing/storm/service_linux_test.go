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
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
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
	return objects.Name(fmt.Sprintf("storm/service-%d", number))
}

// service returns the Service with a number.
func (s *spec) service(number int) *v1.Service {
	family := familyOf(number)
	address := func(i, n int) string { return nth(ofFamily(atRemote, family, i), n).String() }
	edits := []objects.Edit{objects.Ports(fmt.Sprintf("TCP %d", servicePort), fmt.Sprintf("UDP %d/UDP", servicePort)), objects.SourceRanges(sourceRanges(s.Ranges, family)...)}
	if s.Internal {
		edits = append(edits, objects.InternalLocal)
	}
	if s.Type != v1.ServiceTypeClusterIP || s.ExternalIP {
		edits = append(edits, func(out *v1.Service) { out.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster })
		if s.External {
			edits = append(edits, objects.ExternalLocal)
		}
	}
	if s.ExternalIP {
		edits = append(edits, objects.ExternalIPs(address(2, number)))
	}
	if s.Type == v1.ServiceTypeLoadBalancer {
		edits = append(edits, objects.LoadBalancer(address(2, 128+number)))
	}
	if s.Affinity > 0 {
		edits = append(edits, objects.Sticky(s.Affinity))
	}
	return objects.Service(serviceName(number).String(), address(1, 256+number), append(edits, func(out *v1.Service) {
		out.Spec.Type, out.Spec.IPFamilies = s.Type, []v1.IPFamily{family}
		for i := range out.Spec.Ports {
			if s.Type != v1.ServiceTypeClusterIP {
				out.Spec.Ports[i].NodePort = int32(firstNodePort + number)
			}
		}
	})...)
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
	out := objects.Slice(fmt.Sprintf("%s-%d", name, i), name.Name)
	out.AddressType, out.Endpoints = discoveryv1.AddressType(familyOf(number)), endpoints
	out.Ports = objects.SlicePorts(fmt.Sprintf("TCP %d", endpointPort), fmt.Sprintf("UDP %d/UDP", endpointPort))
	return out
}

const nodeName = "node"

// nodeObject returns the Node in one of its four states.
func nodeObject(state int) *v1.Node {
	addrs := nodeAddrs()
	if state&1 == 0 {
		addrs = addrs[:2]
	}
	zone := map[bool]string{true: "a"}[state&2 != 0]
	return objects.Node(nodeName, zone, objects.Many(len(addrs), func(i int) string { return addrs[i].String() })...)
}

func trackerOptions() proxy.TrackerOptions {
	pods := snapshots.Prefixes("10.0.0.0/14", "fd00:10::/32")
	return proxy.TrackerOptions{
		NodeName: nodeName, NodePortAddresses: proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: pods},
		ServiceCIDRs: snapshots.Prefixes("10.96.0.0/16", "fd00:96::/112"),
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
	tracker *proxy.ServiceChangeTracker
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
