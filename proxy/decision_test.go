package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// These tables have what must happen to a packet, by scenario, by its sender and by the
// frontend that it is for: ClusterIP, external IP, load-balancer IP, node port.
// A letter is an endpoint that may get the packet: l is local, r remote, h the
// node itself; a capital letter says that the endpoint sees an address of the node.

type scenario struct {
	name      string
	edits     []edit
	endpoints []string
	want      map[string]string
}

const (
	localEndpoint  = "10.0.0.5 @here"
	remoteEndpoint = "10.1.0.5 @there"
)

// senders are packets without destination, by sender.
func senders() map[string]Packet {
	from := func(addr string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(addr), 40000) }
	return map[string]Packet{
		"pod":     {Source: from("10.0.0.9"), Interface: "veth9"},
		"self":    {Source: from("10.0.0.5"), Interface: "veth5"},
		"node":    {Source: from("192.168.0.1"), FromNode: true},
		"allowed": {Source: from("203.0.113.5"), Interface: "eth0"},
		"denied":  {Source: from("198.51.100.7"), Interface: "eth0"},
	}
}

func (sc *scenario) snapshot(t *testing.T, options ...func(*TrackerOptions)) Snapshot {
	t.Helper()
	tr := newTestTracker(options...)
	all := []edit{objects.ExternalIPs("198.51.100.1"), objects.LoadBalancer("198.51.100.2"), objects.NodePort(30080)}
	tr.UpdateService(apiService("web", "10.96.0.1", append(all, sc.edits...)...))
	tr.UpdateEndpointSlice(apiSlice("web-1", "web", sc.endpoints...))
	return newest(t, tr)
}

// cells routes one packet to each kind of frontend.
func cells(s Snapshot, p Packet) string {
	var out []string
	for _, to := range []string{"10.96.0.1:80", "198.51.100.1:80", "198.51.100.2:80", "192.168.0.1:30080"} {
		p.Protocol, p.Destination, p.ToNode = v1.ProtocolTCP, netip.MustParseAddrPort(to), strings.HasPrefix(to, "192")
		v := Route(s, p)
		text := v.Action.String()
		if v.Action == Forward {
			text = destinationLetters(v.Endpoints)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func destinationLetters(list []Destination) string {
	var letters []string
	for _, d := range list {
		letter := map[string]string{"10.0.0.5:8080": "l", "10.1.0.5:8080": "r", "192.168.0.1:8080": "h"}[d.Addr.String()]
		if d.Masquerade {
			letter = strings.ToUpper(letter)
		}
		letters = append(letters, letter)
	}
	return strings.Join(letters, "")
}

func runScenarios(t *testing.T, list []scenario, options ...func(*TrackerOptions)) {
	t.Helper()
	for _, sc := range list {
		t.Run(sc.name, func(t *testing.T) {
			s := sc.snapshot(t, options...)
			got := map[string]string{}
			for name, p := range senders() {
				got[name] = cells(s, p)
			}
			testenv.Same(t, sc.want, got, "verdicts")
		})
	}
}

// everybody is a table for scenarios in which the source ranges do not matter.
func everybody(pod, self, node, outside string) map[string]string {
	return map[string]string{"pod": pod, "self": self, "node": node, "allowed": outside, "denied": outside}
}

func TestDecisions(t *testing.T) {
	both := []string{localEndpoint, remoteEndpoint}
	affinity := func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP }
	onNode := []string{"192.168.0.1 @here"}
	rejected := everybody("reject reject reject reject", "reject reject reject reject", "reject reject reject reject", "reject reject reject reject")
	cluster := everybody("lr LR LR LR", "Lr LR LR LR", "LR LR LR LR", "LR LR LR LR")
	restricted := map[string]string{
		"pod": "lr LR drop LR", "self": "Lr LR drop LR", "node": "LR LR drop LR", "allowed": "LR LR LR LR", "denied": "LR LR drop LR",
	}
	withNode := map[string]string{
		"pod": "lr LR drop LR", "self": "Lr LR drop LR", "node": "LR LR LR LR", "allowed": "LR LR LR LR", "denied": "LR LR drop LR",
	}
	restrictedLocal := map[string]string{
		"pod": "lr lr drop lr", "self": "Lr Lr drop Lr", "node": "LR LR drop LR", "allowed": "LR l l l", "denied": "LR l drop l",
	}
	nothing := "reject reject drop reject"
	restrictedNothing := map[string]string{"pod": nothing, "self": nothing, "node": nothing, "allowed": "reject reject reject reject", "denied": nothing}
	runScenarios(t, []scenario{
		{"Cluster policies", nil, both, cluster},
		{"affinity", []edit{affinity}, both, cluster},
		{"only terminating endpoints", nil, []string{localEndpoint + " T", remoteEndpoint + " T"}, cluster},
		{"external Local", []edit{objects.ExternalLocal}, both, everybody("lr lr lr lr", "Lr Lr Lr Lr", "LR LR LR LR", "LR l l l")},
		{"external Local, only remote", []edit{objects.ExternalLocal}, both[1:], everybody("r r r r", "r r r r", "R R R R", "R drop drop drop")},
		{"external Local, only local", []edit{objects.ExternalLocal}, both[:1], everybody("l l l l", "L L L L", "L L L L", "L l l l")},
		{
			"external Local, local one terminates", []edit{objects.ExternalLocal}, []string{localEndpoint + " T", remoteEndpoint},
			everybody("r r r r", "r r r r", "R R R R", "R l l l"),
		},
		{"internal Local", []edit{objects.InternalLocal}, both, everybody("l LR LR LR", "L LR LR LR", "L LR LR LR", "L LR LR LR")},
		{"internal Local, only remote", []edit{objects.InternalLocal}, both[1:], everybody("drop R R R", "drop R R R", "drop R R R", "drop R R R")},
		{"both Local", []edit{objects.InternalLocal, objects.ExternalLocal}, both, everybody("l lr lr lr", "L Lr Lr Lr", "L LR LR LR", "L l l l")},
		{"both Local, only remote", []edit{objects.InternalLocal, objects.ExternalLocal}, both[1:], everybody("drop r r r", "drop r r r", "drop R R R", "drop drop drop drop")},
		{"no endpoints", nil, nil, rejected},
		{"no usable endpoints", []edit{objects.InternalLocal, objects.ExternalLocal}, []string{localEndpoint + " U", remoteEndpoint + " U"}, rejected},
		{"source ranges", []edit{objects.SourceRanges("203.0.113.0/24")}, both, restricted},
		{"source ranges with the node", []edit{objects.SourceRanges("203.0.113.0/24", "192.168.0.0/16")}, both, withNode},
		{"source ranges, no endpoints", []edit{objects.SourceRanges("203.0.113.0/24")}, nil, restrictedNothing},
		{"source ranges, external Local", []edit{objects.SourceRanges("203.0.113.0/24"), objects.ExternalLocal}, both, restrictedLocal},
		{"only local", nil, both[:1], everybody("l L L L", "L L L L", "L L L L", "L L L L")},
		{"endpoint on the node's network", nil, onNode, everybody("h h h h", "h h h h", "H H H H", "h h h h")},
		{"endpoint on the node's network, external Local", []edit{objects.ExternalLocal}, onNode, everybody("h h h h", "h h h h", "H H H H", "h h h h")},
	})
}

// Source ranges of which none is usable deny all clients.
func TestUnusableSourceRangesDeny(t *testing.T) {
	closed := everybody("lr LR drop LR", "Lr LR drop LR", "LR LR drop LR", "LR LR drop LR")
	both := []string{localEndpoint, remoteEndpoint}
	runScenarios(t, []scenario{
		{"wrong family", []edit{objects.SourceRanges("2001:db8::/32")}, both, closed},
		{"nonsense", []edit{objects.SourceRanges("nonsense")}, both, closed},
	})
}

func TestDecisionsWithMasqueradeAll(t *testing.T) {
	both := []string{localEndpoint, remoteEndpoint}
	runScenarios(t, []scenario{
		{"Cluster policies", nil, both, everybody("LR LR LR LR", "LR LR LR LR", "LR LR LR LR", "LR LR LR LR")},
		{"internal Local", []edit{objects.InternalLocal}, both, everybody("L LR LR LR", "L LR LR LR", "L LR LR LR", "L LR LR LR")},
		{"external Local", []edit{objects.ExternalLocal}, both, everybody("LR lr lr lr", "LR Lr Lr Lr", "LR LR LR LR", "LR l l l")},
		{"endpoint on the node's network", nil, []string{"192.168.0.1 @here"}, everybody("h h h h", "h h h h", "H H H H", "h h h h")},
	}, func(o *TrackerOptions) { o.MasqueradeAll = true })
}

// If the Local policy falls back to all endpoints, traffic from outside is masqueraded, as
// with the Cluster policy: otherwise replies would not return through this node.
func TestDecisionsWithFallbackToCluster(t *testing.T) {
	dying := localEndpoint + " T"
	runScenarios(t, []scenario{
		{"local one terminates", []edit{objects.ExternalLocal}, []string{dying, remoteEndpoint}, everybody("r R R R", "r R R R", "R R R R", "R R R R")},
		{"both policies", []edit{objects.ExternalLocal, objects.InternalLocal}, []string{dying, remoteEndpoint}, everybody("r R R R", "r R R R", "R R R R", "R R R R")},
		{"local one is ready", []edit{objects.ExternalLocal}, []string{localEndpoint, remoteEndpoint}, everybody("lr lr lr lr", "Lr Lr Lr Lr", "LR LR LR LR", "LR l l l")},
	}, func(o *TrackerOptions) { o.LocalFallback = endpoints.FallbackCluster })
}

func TestDecisionsWithoutDetector(t *testing.T) {
	both := []string{localEndpoint, remoteEndpoint}
	list := []scenario{
		{"Cluster policies", nil, both, everybody("lr LR LR LR", "Lr LR LR LR", "lr LR LR LR", "lr LR LR LR")},
		{"external Local", []edit{objects.ExternalLocal}, both, everybody("lr l l l", "Lr L L L", "lr LR LR LR", "lr l l l")},
		{"external Local, only remote", []edit{objects.ExternalLocal}, both[1:], everybody("r drop drop drop", "r drop drop drop", "r R R R", "r drop drop drop")},
	}
	runScenarios(t, list, func(o *TrackerOptions) { o.LocalTraffic = LocalTraffic{} })
	runScenarios(t, list, func(o *TrackerOptions) { o.LocalTraffic = LocalTraffic{Sources: prefixes("fd00::/8")} })
}

func TestDecisionsWithInterfaces(t *testing.T) {
	list := []scenario{{
		"external Local",
		[]edit{objects.ExternalLocal},
		[]string{localEndpoint, remoteEndpoint},
		everybody("lr lr lr lr", "Lr Lr Lr Lr", "LR LR LR LR", "LR l l l"),
	}}
	runScenarios(t, list, func(o *TrackerOptions) { o.LocalTraffic = LocalTraffic{InterfacePrefix: "veth"} })
	name := func(o *TrackerOptions) { o.LocalTraffic = LocalTraffic{Interface: "veth9"} }
	list[0].want["self"] = "LR L L L" // another interface: not known as a pod
	runScenarios(t, list, name)
}

// TestPoolsOfPolicies: a pool has endpoints only if a route or a policy needs it.
func TestPoolsOfPolicies(t *testing.T) {
	clusterOnly := func(s *v1.Service) {
		s.Spec.ExternalIPs, s.Status.LoadBalancer.Ingress, s.Spec.Type, s.Spec.Ports[0].NodePort = nil, nil, v1.ServiceTypeLoadBalancer, 0
	}
	for _, tc := range []struct {
		name                       string
		edits                      []edit
		cluster, local             int
		internalLocal, externalLoc bool
	}{
		{"Cluster", []edit{clusterOnly}, 2, 0, false, false},
		{"Cluster, external", nil, 2, 0, false, false},
		{"internal Local", []edit{clusterOnly, objects.InternalLocal}, 0, 1, true, false},
		{"internal Local, external", []edit{objects.InternalLocal}, 2, 1, true, false},
		{"external Local without external address", []edit{clusterOnly, objects.ExternalLocal}, 2, 0, false, true},
		{"external Local", []edit{objects.ExternalLocal}, 2, 1, false, true},
		{"both Local", []edit{objects.InternalLocal, objects.ExternalLocal}, 2, 1, true, true},
	} {
		sc := scenario{edits: tc.edits, endpoints: []string{localEndpoint, remoteEndpoint}}
		p := get(t, sc.snapshot(t), portName("web"))
		if len(p.Cluster) != tc.cluster || len(p.Local) != tc.local {
			t.Errorf("%s: got %d cluster and %d local endpoints, want %d and %d", tc.name, len(p.Cluster), len(p.Local), tc.cluster, tc.local)
		}
		if p.InternalLocal != tc.internalLocal || p.ExternalLocal != tc.externalLoc {
			t.Errorf("%s: got Local policies %v/%v, want %v/%v", tc.name, p.InternalLocal, p.ExternalLocal, tc.internalLocal, tc.externalLoc)
		}
		if !slices.Equal(p.Pool(PoolCluster), p.Cluster) || !slices.Equal(p.Pool(PoolLocal), p.Local) {
			t.Errorf("%s: Pool does not return the pools", tc.name)
		}
	}
}

// A service port has what health checks need: whether any endpoint could serve, and the
// health check node port.
func TestFactsForHealthChecks(t *testing.T) {
	health := func(n int32) edit { return func(s *v1.Service) { s.Spec.HealthCheckNodePort = n } }
	for _, tc := range []struct {
		name      string
		edits     []edit
		endpoints []string
		serves    bool
		port      uint16
	}{
		{"ready on another node", []edit{objects.ExternalLocal, health(30001)}, []string{remoteEndpoint}, true, 30001},
		{"terminating on another node", []edit{objects.ExternalLocal, health(30002)}, []string{remoteEndpoint + " T"}, true, 30002},
		{"none can serve", []edit{objects.ExternalLocal, health(30001)}, []string{localEndpoint + " U"}, false, 30001},
		{"none at all", []edit{objects.ExternalLocal, health(30001)}, nil, false, 30001},
		{"external policy Cluster", []edit{health(30001)}, []string{localEndpoint}, true, 0},
	} {
		sc := scenario{edits: tc.edits, endpoints: tc.endpoints}
		p := get(t, sc.snapshot(t), portName("web"))
		if p.HasEndpoints != tc.serves || p.HealthCheckNodePort != tc.port {
			t.Errorf("%s: got HasEndpoints %v, HealthCheckNodePort %d, want %v, %d", tc.name, p.HasEndpoints, p.HealthCheckNodePort, tc.serves, tc.port)
		}
	}
}

// TestTopology: zone hints reduce the cluster pool, never the local one, and only if all
// ready endpoints have hints and one of them is for this zone.
func TestTopology(t *testing.T) {
	withZone := func(zone string) []string {
		tr := newTestTracker()
		tr.UpdateNode(objects.Node("here", zone, "192.168.0.1"))
		tr.UpdateService(apiService("web", "10.96.0.1", objects.ExternalIPs("198.51.100.1"), objects.ExternalLocal))
		tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.1 @here zones=a", "10.0.0.2 @here zones=b", "10.0.0.3 @there zones=b"))
		p := get(t, newest(t, tr), portName("web"))
		var out []string
		for _, e := range p.Cluster {
			out = append(out, "cluster "+e.Addr.Addr().String())
		}
		for _, e := range p.Local {
			out = append(out, "local "+e.Addr.Addr().String())
		}
		return out
	}
	local := []string{"local 10.0.0.1", "local 10.0.0.2"}
	for zone, cluster := range map[string][]string{
		"a": {"cluster 10.0.0.1"},
		"b": {"cluster 10.0.0.2", "cluster 10.0.0.3"},
		"c": {"cluster 10.0.0.1", "cluster 10.0.0.2", "cluster 10.0.0.3"},
		"":  {"cluster 10.0.0.1", "cluster 10.0.0.2", "cluster 10.0.0.3"},
	} {
		testenv.Same(t, append(cluster, local...), withZone(zone), "zone %q: endpoints", zone)
	}
}

// The load balancer of a Service asks for its local endpoints also before the Service has an
// address that traffic from outside reaches, and hints do not reduce them.
func TestHealthChecksCountEndpointsOfOtherZones(t *testing.T) {
	tr := newTestTracker()
	tr.UpdateNode(objects.Node("here", "a", "192.168.0.1"))
	health := func(s *v1.Service) { s.Spec.HealthCheckNodePort = 30001 }
	tr.UpdateService(apiService("web", "10.96.0.1", objects.LoadBalancer(), objects.ExternalLocal, health))
	tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.1 @here zones=a", "10.0.0.2 @here zones=b"))
	p := get(t, newest(t, tr), portName("web"))
	if len(p.Frontends) != 1 || len(p.Cluster) != 1 || len(p.Local) != 2 {
		t.Errorf("got %d frontends, %d endpoints in the cluster pool and %d in the local one, want 1, 1 and 2",
			len(p.Frontends), len(p.Cluster), len(p.Local))
	}
}

// TestIPv6Decisions: IPv6 gets the same decisions as IPv4.
func TestIPv6Decisions(t *testing.T) {
	tr := newTestTracker(func(o *TrackerOptions) {
		o.LocalTraffic.Sources = prefixes("10.0.0.0/8", "fd01::/16")
		o.NodeAddresses = append(o.NodeAddresses, netip.MustParseAddr("2001:db8::1"))
	})
	tr.UpdateService(apiService("web", "", objects.ClusterIPs("10.96.0.1", "fd00::1"), objects.NodePort(30080), objects.ExternalLocal, objects.LoadBalancer("203.0.113.1", "2001:db8::2")))
	tr.UpdateEndpointSlice(apiSlice("web-4", "web", "10.0.0.5 @here"))
	tr.UpdateEndpointSlice(apiSlice("web-6", "web", "fd01::5 @here", "fd02::5 @there"))
	tr.UpdateEndpointSlice(&discoveryv1.EndpointSlice{ObjectMeta: apiSlice("names", "web").ObjectMeta, AddressType: "FQDN"})
	s := newest(t, tr)
	for _, tc := range []struct{ from, to, want string }{
		{"fd01::9", "[fd00::1]:80", "[fd01::5]:8080 [fd02::5]:8080"},
		{"fd01::5", "[fd00::1]:80", "[fd01::5]:8080+ [fd02::5]:8080"},
		{"2001:db8:9::1", "[fd00::1]:80", "[fd01::5]:8080+ [fd02::5]:8080+"},
		{"2001:db8:9::1", "[2001:db8::2]:80", "[fd01::5]:8080"},
		{"2001:db8:9::1", "[2001:db8::1]:30080", "[fd01::5]:8080"},
		{"203.0.113.9", "10.96.0.1:80", "10.0.0.5:8080+"},
		{"::ffff:203.0.113.9", "[::ffff:10.96.0.1]:80", "10.0.0.5:8080+"},
	} {
		p := Packet{Protocol: v1.ProtocolTCP, Source: netip.AddrPortFrom(netip.MustParseAddr(tc.from), 999), Destination: netip.MustParseAddrPort(tc.to), ToNode: true}
		v := Route(s, p)
		var got []string
		for _, d := range v.Endpoints {
			got = append(got, d.Addr.String()+map[bool]string{true: "+"}[d.Masquerade])
		}
		if text := strings.Join(got, " "); text != tc.want {
			t.Errorf("%s to %s: got endpoints %q (%s), want %q", tc.from, tc.to, text, v.Reasons, tc.want)
		}
	}
}

// TestExplainEndpoints checks that a tracker explains endpoints that no pool has, and nothing for
// ports that do not exist.
func TestExplainEndpoints(t *testing.T) {
	tr := NewServiceChangeTracker(TrackerOptions{NodeName: "node-1"})
	tr.UpdateService(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{
			ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, InternalTrafficPolicy: new(v1.ServiceInternalTrafficPolicyLocal),
			Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}},
		},
	})
	tr.UpdateEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(v1.ProtocolTCP), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.1.11"}, NodeName: new("node-1")},
			{Addresses: []string{"10.244.1.12"}, NodeName: new("node-1"), Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
			{Addresses: []string{"10.244.2.11"}, NodeName: new("node-2")},
		},
	})
	name := ServicePortName{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}, Port: "http", Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
	all, got := tr.ExplainEndpoints(name)
	want := []endpoints.Explanation{{InLocal: true, LocalReason: "ready, on this node"}, {LocalReason: "not ready"}, {LocalReason: "on another node"}}
	if diff := cmp.Diff(want, got); diff != "" || len(all) != len(want) || all[1].Addr.String() != "10.244.1.12:8080" {
		t.Errorf("got endpoints %v and reasons (-want +got):\n%s", all, diff)
	}
	for _, other := range []ServicePortName{{}, {NamespacedName: name.NamespacedName, Port: "other"}} {
		if all, got := tr.ExplainEndpoints(other); all != nil || got != nil {
			t.Errorf("%s: got %v, %v, want nothing", other, all, got)
		}
	}
}
