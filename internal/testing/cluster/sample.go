package cluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// Sample is a Service of a random kind, or of a kind that a test chooses. Its number determines its
// name, addresses and node port. It has one port of TCP and one of UDP.
type Sample struct {
	Number     int                             `json:"-"`
	Type       v1.ServiceType                  `json:"type,omitempty"`
	Internal   v1.ServiceInternalTrafficPolicy `json:"internal,omitempty"`
	External   v1.ServiceExternalTrafficPolicy `json:"external,omitempty"`
	Ranges     []string                        `json:"ranges,omitempty"`
	Affinity   int32                           `json:"affinity,omitempty"` // seconds
	ExternalIP bool                            `json:"externalIP,omitempty"`
	Endpoints  []Endpoint                      `json:"endpoints,omitempty"`
}

// Endpoint is an endpoint at a host, or some of its crowd.
type Endpoint struct {
	At Name `json:"at"`
	// Count is the number of endpoints of the crowd, with First the number of the first one;
	// 0: the endpoint is the host itself.
	Count int `json:"count,omitempty"`
	First int `json:"first,omitempty"`
	// Addr replaces the address, for tests that send no packets.
	Addr       netip.Addr                     `json:"-"`
	Conditions discoveryv1.EndpointConditions `json:"-"`
}

// EndpointsAt returns endpoints at hosts.
func EndpointsAt(at ...Name) (all []Endpoint) {
	for _, a := range at {
		all = append(all, Endpoint{At: a})
	}
	return all
}

// RandomSample makes a Service of a random kind, without endpoints. Its load balancer allows all
// sources or one of the lists of ranges.
func RandomSample(r *rand.Rand, number int, ranges ...[]string) Sample {
	s := Sample{Number: number, Type: objects.OneOf(r, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, v1.ServiceTypeLoadBalancer)}
	s.Internal = objects.OneOf(r, v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)
	s.External = objects.OneOf(r, v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)
	s.ExternalIP = r.IntN(2) == 0
	if r.IntN(2) == 0 {
		s.Ranges = objects.OneOf(r, ranges...)
	}
	if r.IntN(4) == 0 {
		s.Affinity = 300
	}
	return s
}

// Objects returns the API objects of a sample, for both families.
func (s *Sample) Objects() Objects {
	out := Objects{Services: []*v1.Service{s.service()}, Slices: s.slices()}
	out.Services = append(out.Services, IPv6Service(out.Services[0]))
	for _, e := range out.Slices {
		out.Slices = append(out.Slices, IPv6Slice(e))
	}
	return out
}

func (s *Sample) name() string { return fmt.Sprintf("sample-%d", s.Number) }

// ClusterIP returns the ClusterIP of IPv4. Of numbers above 100, the other addresses are not distinct.
func (s *Sample) ClusterIP() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, byte(1 + s.Number>>8), byte(s.Number)})
}

// ExternalAddr returns the external IP that a sample may have.
func (s *Sample) ExternalAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{203, 0, 113, byte(s.Number)})
}

func (s *Sample) loadBalancerAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{203, 0, 113, byte(128 + s.Number)})
}

// NodePort returns the node port that a sample may have.
func (s *Sample) NodePort() uint16 { return uint16(FirstNodePort + s.Number) }

// Frontends returns all addresses that a sample may have, whether it has them or not.
func (s *Sample) Frontends() []netip.AddrPort {
	return []netip.AddrPort{
		netip.AddrPortFrom(s.ClusterIP(), ServicePort),
		netip.AddrPortFrom(s.ExternalAddr(), ServicePort),
		netip.AddrPortFrom(s.loadBalancerAddr(), ServicePort),
		netip.AddrPortFrom(Hosts()[0].Addrs[0], s.NodePort()),
		netip.AddrPortFrom(SecondaryAddrs()[0], s.NodePort()),
	}
}

func (s *Sample) service() *v1.Service {
	port := fmt.Sprint(ServicePort)
	if s.Type == v1.ServiceTypeNodePort || s.Type == v1.ServiceTypeLoadBalancer {
		port += fmt.Sprintf(":%d", s.NodePort())
	}
	edits := []objects.Edit{objects.Ports("TCP "+port, "UDP "+port+"/UDP"), objects.SourceRanges(s.Ranges...)}
	if s.ExternalIP {
		edits = append(edits, objects.ExternalIPs(s.ExternalAddr().String()))
	}
	if s.Type == v1.ServiceTypeLoadBalancer {
		edits = append(edits, objects.LoadBalancer(s.loadBalancerAddr().String()))
	}
	if s.Affinity > 0 {
		edits = append(edits, objects.Sticky(s.Affinity))
	}
	out := objects.Service("test/"+s.name(), s.ClusterIP().String(), edits...)
	out.Spec.ClusterIPs = nil // as in scenarios
	out.Spec.Type = s.Type
	if s.Type != v1.ServiceTypeClusterIP || s.ExternalIP {
		out.Spec.ExternalTrafficPolicy = s.External
	}
	if s.Internal != "" {
		out.Spec.InternalTrafficPolicy = &s.Internal
	}
	return out
}

// sliceSize is the largest number of endpoints of an EndpointSlice.
const sliceSize = 100

// slices returns the EndpointSlices of a sample; at least one.
func (s *Sample) slices() []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for rest, isFirst := s.endpoints(), true; isFirst || len(rest) > 0; isFirst = false {
		n := min(sliceSize, len(rest))
		e := objects.Slice(fmt.Sprintf("test/%s-%d", s.name(), 1+len(out)), s.name())
		e.Ports = objects.SlicePorts(fmt.Sprintf("TCP %d", EndpointPort), fmt.Sprintf("UDP %d/UDP", EndpointPort))
		e.Endpoints, rest = rest[:n], rest[n:]
		out = append(out, e)
	}
	return out
}

func (s *Sample) endpoints() (all []discoveryv1.Endpoint) {
	for _, e := range s.Endpoints {
		node := string(Node)
		for _, a := range e.addrs(s.Number) {
			if e.At != "" && Find(e.At).Uplink == RemoteNode {
				node = string(RemoteNode)
			}
			all = append(all, discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: &node, Conditions: e.Conditions})
		}
	}
	return all
}

// MaxCrowd is the largest number of endpoints of a sample in one crowd; its number is at most 31 then.
const MaxCrowd = 2040

// addrs returns the addresses of IPv4 of an endpoint.
func (e *Endpoint) addrs(number int) (all []netip.Addr) {
	if e.Addr.IsValid() {
		return []netip.Addr{e.Addr}
	}
	h := Find(e.At)
	if e.Count == 0 {
		return []netip.Addr{h.Addrs[0]}
	}
	for i := range min(e.Count, MaxCrowd) {
		all = append(all, Nth(h.Crowd[0], 2+number*(MaxCrowd+8)+(e.First+i)%MaxCrowd))
	}
	return all
}

// Nth returns the address n of a prefix.
func Nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-1] += byte(n)
	b[len(b)-2] += byte(n >> 8)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Objects are API objects of one family or both.
type Objects struct {
	Services []*v1.Service
	Slices   []*discoveryv1.EndpointSlice
	Nodes    []*v1.Node
}

// HandTo updates a tracker with all objects.
func (o *Objects) HandTo(t objects.Handler) {
	for _, s := range o.Services {
		t.UpdateService(s)
	}
	for _, s := range o.Slices {
		t.UpdateEndpointSlice(s)
	}
	for _, n := range o.Nodes {
		t.UpdateNode(n)
	}
}
