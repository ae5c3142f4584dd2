package kernelspace_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// randomService gives a tracker a Service of a random kind, with random endpoints.
func randomService(r *rand.Rand, i int, tracker *proxy.ServiceChangeTracker) {
	name := fmt.Sprintf("service-%d", i)
	s := objects.Service("test/"+name, clusterIP(i).String())
	s.Spec.Type = pick(r, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer)
	if r.IntN(2) == 0 {
		objects.InternalLocal(s)
	}
	if s.Spec.Type != v1.ServiceTypeClusterIP {
		s.Spec.Ports[0].NodePort = int32(30000 + i)
		s.Spec.ExternalTrafficPolicy = pick(r, v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)
		s.Spec.ExternalIPs = []string{fmt.Sprintf("203.0.113.%d", 100+i)}
	}
	if s.Spec.Type == v1.ServiceTypeLoadBalancer {
		objects.LoadBalancer(fmt.Sprintf("203.0.113.%d", i))(s)
		if r.IntN(4) == 0 {
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
		}
	}
	if r.IntN(4) == 0 {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	}
	tracker.UpdateService(s)
	for n, port := range []string{"8080", pick(r, "8080", "8080", "9090")} {
		list := objects.Many(r.IntN(4), func(j int) string { return randomEndpoint(r, 1+4*n+j) })
		slice := objects.Slice(fmt.Sprintf("test/%s-%d", name, n), name, list...)
		slice.Ports = objects.SlicePorts("http " + port)
		tracker.UpdateEndpointSlice(slice)
	}
}

func randomEndpoint(r *rand.Rand, i int) string {
	where := pick(r, pod(i).String()+" @node-1", elsewhere(i).String()+" @node-2")
	return where + pick(r, "", " R", " T", " X", " U") + pick(r, "", "", " nodes="+pick(r, "node-1", "node-2"))
}

// Policies, topology and terminating endpoints lead to the endpoints that [proxy.Route] allows, for
// clients in pods and outside. Where they do not, a limit of the port says so.
func TestRoute(t *testing.T) {
	r := testenv.Random(t)
	m := newMachine(t, newest())
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{
		NodeName: "node-1", NodeAddresses: []netip.Addr{nodeAddr}, NodePortAddresses: proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes("10.0.0.0/8")},
	})
	tracker.Synced()
	same, different := 0, 0
	for range 100 {
		for range 3 {
			randomService(r, 1+r.IntN(20), tracker)
		}
		s, err := tracker.Next(t.Context(), proxy.Snapshot{})
		testenv.NoError(t, err)
		testenv.NoError(t, m.applySnapshot(s))
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
	isNamed := slices.ContainsFunc(m.backend.Abilities().CheckLimits(s.Node(), p), func(l *proxy.Problem) bool {
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
