package backendtest

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// testPoison gives a backend service ports that no dataplane can hold, or that ask
// for more than any needs. No tracker makes such ports, but programs may make their
// own, and a tracker may have a defect: all other ports must not suffer.
func (c *Config) testPoison(t *testing.T) {
	for _, p := range []struct {
		name  string
		test  func(*testing.T, *stage)
		needs Capability
	}{
		{"Objects", poisonObjects, ""},
		{"Counts", poisonCounts, ""},
		{"Interface", poisonInterface, PodInterfaces},
	} {
		if c.lacks(p.needs) {
			continue
		}
		c.run(t, "Poison/"+p.name, func(t *testing.T) {
			s := c.setUp(t)
			s.calm()
			p.test(t, s)
		})
	}
}

// poisons are service ports that cannot be served, each for the reason that is its
// name.
func poisons() []*proxy.ServicePort {
	frontend := func(addr string) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) { p.Frontends[0].Addr = netip.MustParseAddrPort(addr) }
	}
	pool := func(addrs ...netip.AddrPort) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) { p.Cluster = poolAt(addrs...) }
	}
	good := netip.MustParseAddrPort("10.0.0.5:8080")
	var all []*proxy.ServicePort
	for _, p := range []struct {
		name string
		harm func(*proxy.ServicePort)
	}{
		{"endpoint-of-the-other-family", pool(good, netip.MustParseAddrPort("[fd00:10::5]:8080"))},
		{"endpoint-without-address", pool(good, netip.AddrPort{})},
		{"frontend-of-the-other-family", frontend("[fd00:96::5:1]:80")},
		{"frontend-without-address", func(p *proxy.ServicePort) { p.Frontends[0].Addr = netip.AddrPort{} }},
		{"frontend-at-no-address", frontend("0.0.0.0:80")},
		{"no-endpoints-to-forward-to", pool()},
		{"protocol-without-ports", func(p *proxy.ServicePort) { p.Name.Protocol = "ICMP" }},
		{"no-protocol", func(p *proxy.ServicePort) { p.Name.Protocol = "" }},
	} {
		x := handMade(p.name, len(all), good)
		p.harm(x)
		all = append(all, x)
	}
	return all
}

// handMade is a service port with a ClusterIP of its own.
func handMade(name string, number int, pool ...netip.AddrPort) *proxy.ServicePort {
	route := proxy.TrafficRoute{Action: proxy.Forward, Masquerade: proxy.MasqueradeNonPods}
	return &proxy.ServicePort{
		Name: proxy.ServicePortName{
			NamespacedName: types.NamespacedName{Namespace: "poison", Name: name}, Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol,
		},
		Frontends: []proxy.Frontend{{
			Kind: proxy.ClusterIP, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 200, byte(number)}), samplePort),
			FromInside: route, FromOutside: route,
		}},
		Cluster: poolAt(pool...), HasEndpoints: true,
	}
}

func poolAt(addrs ...netip.AddrPort) []*endpoints.Endpoint {
	var out []*endpoints.Endpoint
	for _, a := range addrs {
		out = append(out, &endpoints.Endpoint{Addr: a, Ready: true, Serving: true})
	}
	return out
}

// healthy is a small world, and packets that prove that it works.
func healthy(t *testing.T) (proxy.Snapshot, []flight) {
	t.Helper()
	var all []objects
	var flights []flight
	for number, at := range []place{atLocal, atRemote} {
		x := &sample{
			number: number + 1, serviceType: v1.ServiceTypeNodePort, external: v1.ServiceExternalTrafficPolicyCluster,
			endpoints: []sampleEndpoint{{at: at}},
		}
		all = append(all, x.objects())
		for _, from := range []place{atClient, atNode, atOutside} {
			for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
				flights = append(flights, client{from, v1.ProtocolTCP, family}.flightsTo(x)...)
			}
		}
	}
	return snapshotOf(t, nodeOptions(), all...), flights
}

// with gives a snapshot with further ports, on another node if that is not nil.
func with(s proxy.Snapshot, node *proxy.Node, more ...*proxy.ServicePort) proxy.Snapshot {
	if node == nil {
		node = s.Node()
	}
	return proxy.NewSnapshot(node, append(slices.Collect(s.All()), more...)...)
}

// poisonObjects: ports that no dataplane can hold are named, all of them and no
// others, and the dataplane is what it is without them.
func poisonObjects(t *testing.T, s *stage) {
	world, flights := healthy(t)
	ill := poisons()
	s.apply(t, world)
	want := s.dump(t)
	for _, start := range []proxy.Snapshot{world, {}} {
		if start.IsZero() {
			s.restart(t)
		}
		failed := s.applyIll(t, start, with(world, nil, ill...))
		for _, p := range ill {
			if failed[p.Name] == nil {
				t.Errorf("from %d ports: the error does not name %s", start.Len(), p.Name)
			}
			delete(failed, p.Name)
		}
		for name, err := range failed {
			t.Errorf("from %d ports: the error names %s, which is well: %v", start.Len(), name, err)
		}
		if diff := cmp.Diff(want, s.dump(t)); diff != "" {
			t.Errorf("from %d ports: the dataplane (-without the ill ones +with them):\n%s", start.Len(), diff)
		}
		s.hold(t, world, flights)
	}
}

// applyIll applies a snapshot with ports that may fail, from nothing once more if
// the backend wants that, as a [proxy.Runner] does, and gives what has failed.
func (s *stage) applyIll(t *testing.T, old, next proxy.Snapshot) proxy.PortErrors {
	t.Helper()
	err := s.backend.Apply(t.Context(), old, next)
	for range 2 {
		if errors.Is(err, proxy.ErrDataplaneLost) {
			err = s.backend.Apply(t.Context(), proxy.Snapshot{}, next)
		}
	}
	failed, some := errors.AsType[proxy.PortErrors](err)
	if err != nil && (!some || errors.Is(err, proxy.ErrDataplaneLost)) {
		t.Fatalf("Apply: got error %v, want one that names ports", err)
	}
	return failed
}

// poisonCounts: a port of absurd size is programmed or named, and others are what
// they were, then and when it goes.
func poisonCounts(t *testing.T, s *stage) {
	world, flights := healthy(t)
	s.apply(t, world)
	want := s.dump(t)
	many, same := handMade("many-endpoints", 1), handMade("one-endpoint-many-times", 2)
	for i := range 6000 {
		many.Cluster = append(many.Cluster, poolAt(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 80))...)
		same.Cluster = append(same.Cluster, many.Cluster[0])
	}
	ports := handMade("many-frontends", 3, netip.MustParseAddrPort("10.0.0.5:8080"))
	for i := range 1000 {
		f := ports.Frontends[0]
		f.Kind, f.Addr = proxy.ExternalIP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, 250}), uint16(1000+i))
		ports.Frontends = append(ports.Frontends, f)
	}
	for _, p := range []*proxy.ServicePort{many, same, ports} {
		failed := s.applyIll(t, world, with(world, nil, p))
		for name, err := range failed {
			if name != p.Name {
				t.Errorf("%s: the error names %s: %v", p.Name, name, err)
			}
		}
		t.Logf("%s: %d errors: %.200v", p.Name.Name, len(failed), failed[p.Name])
		s.hold(t, world, flights)
		s.restart(t)
		s.apply(t, world)
		if diff := cmp.Diff(want, s.dump(t)); diff != "" {
			t.Errorf("%s: the dataplane when it is gone (-before +after):\n%s", p.Name, diff)
		}
	}
}

// poisonInterface: if pods are told by an interface that there is not, nobody is a
// pod, and everything else works.
func poisonInterface(t *testing.T, s *stage) {
	world, flights := healthy(t)
	for _, traffic := range []proxy.LocalTraffic{{Interface: "nowhere0"}, {InterfacePrefix: "nowhere"}} {
		node := *world.Node()
		node.LocalTraffic = traffic
		elsewhere := with(world, &node)
		s.apply(t, elsewhere)
		s.hold(t, elsewhere, flights)
	}
}
