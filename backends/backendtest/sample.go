package backendtest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	build "github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// sample is a Service of a random kind, or of a kind that a test chooses.
type sample struct {
	number       int
	serviceType  v1.ServiceType
	internal     v1.ServiceInternalTrafficPolicy
	external     v1.ServiceExternalTrafficPolicy
	ranges       []string
	affinity     int32 // seconds
	externalIP   bool
	loadBalancer bool
	endpoints    []sampleEndpoint
}

type sampleEndpoint struct {
	at         hostName
	addr       netip.Addr // replaces the host's own, for tests that send no packets
	conditions discoveryv1.EndpointConditions
}

// randomSample makes a Service of a random kind; its names and addresses depend on number.
func randomSample(r *rand.Rand, number int) sample {
	s := sample{number: number, serviceType: build.OneOf(r, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, v1.ServiceTypeLoadBalancer)}
	s.internal = build.OneOf(r, v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)
	s.externalIP = r.IntN(2) == 0
	s.loadBalancer = s.serviceType == v1.ServiceTypeLoadBalancer
	if s.serviceType != v1.ServiceTypeClusterIP || s.externalIP {
		s.external = build.OneOf(r, v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)
	}
	switch r.IntN(4) {
	case 0:
		s.ranges = []string{"192.0.2.0/24"}
	case 1:
		s.ranges = []string{"198.51.100.0/24", "172.18.0.2/32", "10.0.0.6/32"}
	}
	if r.IntN(4) == 0 {
		s.affinity = 300
	}
	for _, at := range []hostName{atLocal, atLocal2, atRemote, atRemote2, atNode} {
		if r.IntN(2) == 0 {
			s.endpoints = append(s.endpoints, sampleEndpoint{at: at, conditions: randomConditions(r)})
		}
	}
	return s
}

func randomConditions(r *rand.Rand) discoveryv1.EndpointConditions {
	yes, no := true, false
	return build.OneOf(r,
		discoveryv1.EndpointConditions{},
		discoveryv1.EndpointConditions{Ready: &yes},
		discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes},
		discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes},
		discoveryv1.EndpointConditions{Ready: &no, Serving: &no})
}

// exposed is a Service at all nodes and at an external address, with endpoints at some hosts.
func exposed(number int, at ...hostName) *sample {
	return &sample{
		number: number, serviceType: v1.ServiceTypeNodePort, externalIP: true, external: v1.ServiceExternalTrafficPolicyCluster,
		endpoints: endpointsAt(at...),
	}
}

func endpointsAt(at ...hostName) (all []sampleEndpoint) {
	for _, a := range at {
		all = append(all, sampleEndpoint{at: a})
	}
	return all
}

// objects returns the API objects of a sample, for both families.
func (s *sample) objects() objects {
	service, slice := s.service(), s.slice()
	return objects{
		services: []*v1.Service{service, ipv6ServiceOf(service)},
		slices:   []*discoveryv1.EndpointSlice{slice, ipv6SliceOf(slice)},
	}
}

func (s *sample) name() string { return fmt.Sprintf("sample-%d", s.number) }

const samplePort = 80

// Addresses of a sample. Numbers above 100 are for tests that send no packets.
func (s *sample) clusterIP() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, byte(1 + s.number>>8), byte(s.number)})
}

func (s *sample) externalAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{203, 0, 113, byte(s.number)})
}

func (s *sample) loadBalancerAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{203, 0, 113, byte(128 + s.number)})
}

func (s *sample) nodePort() int32 { return int32(firstHostPort + s.number) }

func (s *sample) service() *v1.Service {
	port := fmt.Sprint(samplePort)
	if s.serviceType == v1.ServiceTypeNodePort || s.serviceType == v1.ServiceTypeLoadBalancer {
		port += fmt.Sprintf(":%d", s.nodePort())
	}
	edits := []build.Edit{build.Ports("TCP "+port, "UDP "+port+"/UDP"), build.SourceRanges(s.ranges...)}
	if s.externalIP {
		edits = append(edits, build.ExternalIPs(s.externalAddr().String()))
	}
	if s.loadBalancer {
		edits = append(edits, build.LoadBalancer(s.loadBalancerAddr().String()))
	}
	if s.affinity > 0 {
		edits = append(edits, build.Sticky(s.affinity))
	}
	out := build.Service("test/"+s.name(), s.clusterIP().String(), edits...)
	out.Spec.ClusterIPs = nil // as in scenarios
	out.Spec.Type, out.Spec.ExternalTrafficPolicy = s.serviceType, s.external
	if s.internal != "" {
		out.Spec.InternalTrafficPolicy = &s.internal
	}
	return out
}

func (s *sample) slice() *discoveryv1.EndpointSlice {
	out := build.Slice("test/"+s.name()+"-1", s.name())
	out.Ports = build.SlicePorts(fmt.Sprintf("TCP %d", endpointPort), fmt.Sprintf("UDP %d/UDP", endpointPort))
	for _, e := range s.endpoints {
		addr, node := e.addr, string(atNode)
		for _, hostSpec := range hostSpecs() {
			if hostSpec.name == e.at && !addr.IsValid() {
				addr = hostSpec.addr(v1.IPv4Protocol)
			}
			if hostSpec.name == e.at && hostSpec.uplink == atRemoteNode {
				node = string(atRemoteNode)
			}
		}
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr.String()}, NodeName: &node, Conditions: e.conditions,
		})
	}
	return out
}

// frontends returns all addresses that a sample may have, whether it has them or not.
func (s *sample) frontends() []netip.AddrPort {
	return []netip.AddrPort{
		netip.AddrPortFrom(s.clusterIP(), samplePort),
		netip.AddrPortFrom(s.externalAddr(), samplePort),
		netip.AddrPortFrom(s.loadBalancerAddr(), samplePort),
		netip.AddrPortFrom(netip.MustParseAddr("172.18.0.2"), uint16(s.nodePort())),
		netip.AddrPortFrom(netip.MustParseAddr("172.18.1.2"), uint16(s.nodePort())),
	}
}

// history is a tracker with its samples, which change at random.
type history struct {
	random  *rand.Rand
	tracker tracking
	samples []sample
	last    proxy.Snapshot
	// plain says that samples have no session affinity.
	plain bool
	// first is the number of the first sample.
	first int
}

func newHistory(r *rand.Rand, tracker tracking, samples int, plain bool) *history {
	h := &history{random: r, tracker: tracker, plain: plain, first: 1}
	h.begin(samples)
	return h
}

// begin makes a number of samples, and hands them to the tracker.
func (h *history) begin(samples int) {
	for i := range samples {
		s := h.sample(h.first + i)
		h.samples = append(h.samples, s)
		o := s.objects()
		o.handTo(h.tracker)
	}
	h.tracker.Synced()
}

// sample makes a Service by number.
func (h *history) sample(number int) sample {
	s := randomSample(h.random, number)
	if h.plain {
		s.affinity = 0
	}
	return s
}

// next changes some Services, or removes them or their endpoints for a while, and returns
// the next snapshot.
func (h *history) next(t testing.TB) proxy.Snapshot {
	t.Helper()
	for range 1 + h.random.IntN(3) {
		i := h.random.IntN(len(h.samples))
		h.samples[i] = h.sample(h.first + i)
		o := h.samples[i].objects()
		switch h.random.IntN(5) {
		case 0:
			for _, s := range o.services {
				h.tracker.DeleteService(nameOf(s))
			}
		case 1:
			for _, s := range o.slices {
				h.tracker.DeleteEndpointSlice(nameOf(s))
			}
		default:
			o.handTo(h.tracker)
		}
	}
	ctx := t.Context()
	s, err := h.tracker.Next(ctx, proxy.Snapshot{})
	testenv.NoError(t, err)
	h.last = s
	return s
}
