package kernelspace_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// randomService gives a tracker a Service of a random kind, with random endpoints.
func randomService(r *rand.Rand, i int, tracker proxy.ServiceChangeTracker) {
	meta := metav1.ObjectMeta{Namespace: "test", Name: fmt.Sprintf("service-%d", i)}
	tcp, internal := v1.ProtocolTCP, pick(r, v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)
	s := &v1.Service{ObjectMeta: meta, Spec: v1.ServiceSpec{
		Type: pick(r, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer), ClusterIP: clusterIP(i).String(),
		InternalTrafficPolicy: &internal, Ports: []v1.ServicePort{{Protocol: tcp, Port: 80}},
	}}
	if s.Spec.Type != v1.ServiceTypeClusterIP {
		s.Spec.Ports[0].NodePort = int32(30000 + i)
		s.Spec.ExternalTrafficPolicy = pick(r, v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)
		s.Spec.ExternalIPs = []string{fmt.Sprintf("203.0.113.%d", 100+i)}
	}
	if s.Spec.Type == v1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: fmt.Sprintf("203.0.113.%d", i)}}
		if r.IntN(4) == 0 {
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
		}
	}
	if r.IntN(4) == 0 {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	}
	tracker.UpdateService(s)
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
	for n, port := range []int32{8080, pick[int32](r, 8080, 8080, 9090)} {
		slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Protocol: &tcp, Port: &port}}}
		slice.Name = fmt.Sprintf("%s-%d", meta.Name, n)
		for j := range r.IntN(4) {
			slice.Endpoints = append(slice.Endpoints, randomEndpoint(r, 1+4*n+j))
		}
		tracker.UpdateEndpointSlice(slice)
	}
}

func randomEndpoint(r *rand.Rand, i int) discoveryv1.Endpoint {
	yes, no := true, false
	e := discoveryv1.Endpoint{Conditions: pick(r,
		discoveryv1.EndpointConditions{}, discoveryv1.EndpointConditions{Ready: &yes},
		discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes},
		discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes},
		discoveryv1.EndpointConditions{Ready: &no, Serving: &no})}
	node := pick(r, "node-1", "node-2")
	e.NodeName, e.Addresses = &node, []string{elsewhere(i).String()}
	if node == "node-1" {
		e.Addresses = []string{pod(i).String()}
	}
	if r.IntN(3) == 0 {
		e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: pick(r, "node-1", "node-2")}}}
	}
	return e
}

// Policies, topology and terminating endpoints lead to the endpoints that [proxy.Route] allows, for
// clients in pods and outside. Where they do not, a limit of the port says so.
func TestRoute(t *testing.T) {
	r := testenv.Random(t)
	m := newMachine(t, newest())
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{
		NodeName: "node-1", NodeAddresses: []netip.Addr{nodeAddr}, NodePortAddresses: proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
	})
	tracker.Synced()
	same, different := 0, 0
	for range 100 {
		for range 3 {
			randomService(r, 1+r.IntN(20), tracker)
		}
		s, err := tracker.Next(t.Context(), proxy.Snapshot{})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.applySnapshot(s); err != nil {
			t.Fatal(err)
		}
		served := m.served()
		for p := range s.All() {
			for i := range p.Frontends {
				for _, from := range []string{"10.0.0.8:4000", "192.0.2.1:4000", "198.51.100.1:4000"} {
					if m.agrees(s, p, &p.Frontends[i], packet{netip.MustParseAddrPort(from), served}) {
						same++
					} else {
						different++
					}
				}
			}
		}
	}
	t.Logf("%d packets go where Route says, and %d do not, for which there are limits", same, different)
	if same < 5*different || different == 0 {
		t.Errorf("got %d packets that go where Route says and %d that do not, want at least five times as many, and some", same, different)
	}
}

// packet is a packet of a client, in an HNS that serves.
type packet struct {
	from   netip.AddrPort
	served map[netip.AddrPort][]netip.AddrPort
}

// agrees reports whether a packet to a frontend may reach the endpoints that Route allows, and no
// others. If it does not, the port must have a limit.
func (m *machine) agrees(s proxy.Snapshot, p *proxy.ServicePort, f *proxy.Frontend, k packet) bool {
	m.t.Helper()
	to := f.Addr
	if f.Kind == proxy.NodePort {
		to = netip.AddrPortFrom(nodeAddr, to.Port())
	}
	var want []netip.AddrPort
	v := proxy.Route(s, proxy.Packet{Protocol: v1.ProtocolTCP, Source: k.from, Destination: to, ToNode: f.Kind == proxy.NodePort})
	for _, e := range v.Endpoints {
		want = append(want, e.Addr)
	}
	got := k.served[to]
	if slices.Equal(got, want) {
		return true
	}
	c, ok := m.backend.(backends.LimitChecker)
	isNamed := ok && slices.ContainsFunc(c.CheckLimits(s.Node(), p), func(l *proxy.Problem) bool {
		return l.Field != "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
	})
	if !isNamed {
		m.t.Errorf("%v from %v to %v: got %v, want %v, or a limit; because %q", p.Name, k.from, to, got, want, v.Reasons)
	}
	return false
}

// served returns the endpoints of all load balancers, by address and port.
func (m *machine) served() map[netip.AddrPort][]netip.AddrPort {
	at := map[string]hcn.Endpoint{}
	for _, e := range m.Endpoints() {
		at[e.ID] = e
	}
	all := map[netip.AddrPort][]netip.AddrPort{}
	for _, b := range m.LoadBalancers() {
		var to []netip.AddrPort
		for _, id := range b.Endpoints {
			to = append(to, netip.AddrPortFrom(at[id].Addresses[0], b.PortMappings[0].InternalPort))
		}
		slices.SortFunc(to, netip.AddrPort.Compare)
		all[netip.AddrPortFrom(b.FrontendVIPs[0], b.PortMappings[0].ExternalPort)] = to
	}
	return all
}
