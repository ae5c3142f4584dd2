package backendtest

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	build "github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// randomFlights returns one packet for each frontend of a sample, from any host except
// pods of other nodes: their answers do not pass this node, so that only a part of their
// packets can be checked. It adds a packet to an address or port close to a frontend.
func (s *sample) randomFlights(r *rand.Rand) []flight {
	var out []flight
	add := func(to netip.AddrPort, from ...cluster.Name) {
		f := flight{from: build.OneOf(r, from...), to: to, protocol: build.OneOf(r, v1.ProtocolTCP, v1.ProtocolUDP)}
		if r.IntN(2) == 0 {
			f.to = netip.AddrPortFrom(cluster.IPv6Of(to.Addr()), to.Port())
		}
		if to.Port() == 0 {
			f.protocol = lab.ICMP
		}
		out = append(out, f)
	}
	for _, to := range s.Frontends() {
		add(to, cluster.Client, cluster.Local, cluster.Local2, cluster.Node, cluster.Outside, cluster.Stranger)
	}
	add(build.OneOf(r,
		netip.AddrPortFrom(s.ClusterIP(), cluster.ServicePort+1),
		netip.AddrPortFrom(s.ExternalAddr(), cluster.ServicePort+1),
		netip.MustParseAddrPort("10.96.77.77:80"),
		netip.AddrPortFrom(netip.MustParseAddr("172.18.0.2"), cluster.FirstNodePort+cluster.NodePorts-1),
		netip.AddrPortFrom(netip.MustParseAddr("10.0.0.5"), cluster.EndpointPort),
		netip.AddrPortFrom(s.ClusterIP(), 0)), cluster.Client, cluster.Node, cluster.Outside)
	return out
}

// randomOptions returns random options of the node.
func (c *Config) randomOptions(r *rand.Rand) proxy.TrackerOptions {
	o := nodeOptions()
	o.MasqueradeAll = r.IntN(4) == 0
	o.LocalFallback = build.OneOf(r, endpoints.FallbackTerminating, endpoints.FallbackNone, endpoints.FallbackCluster)
	o.NodePortAddresses = build.OneOf(r, proxy.NodePortAddresses{}, proxy.NodePortAddresses{All: true},
		proxy.NodePortAddresses{Prefixes: snapshots.Prefixes("172.18.0.0/24", "fd00:18::/64")},
		proxy.NodePortAddresses{Prefixes: snapshots.Prefixes("172.18.1.2/32", "127.0.0.0/8")})
	o.ServiceCIDRs = build.OneOf(r, nil, snapshots.Prefixes("10.96.0.0/16", "fd00:96::/112"), snapshots.Prefixes("fd00:96::/112"))
	traffic := build.OneOf(r, o.LocalTraffic, o.LocalTraffic, proxy.LocalTraffic{},
		proxy.LocalTraffic{Interface: "cali-client"}, proxy.LocalTraffic{InterfacePrefix: "cali-"})
	if traffic.Interface+traffic.InterfacePrefix == "" || !c.lacks(PodInterfaces) {
		o.LocalTraffic = traffic
	}
	return o
}

// testRandom applies random snapshots, and checks each with random packets. The options of the node
// change after some snapshots.
func (c *Config) testRandom(t *testing.T) {
	r := testenv.Random(t)
	s := c.setUp(t)
	steps := randomSteps
	if !c.isEverything() {
		steps = worldSteps
	}
	var h *history
	var options proxy.TrackerOptions
	for step := range steps {
		if step%optionSteps == 0 {
			options = c.randomOptions(r)
			h = newHistory(r, s.tracker(options), 6, c.lacks(Affinity))
		}
		if r.IntN(4) == 0 {
			s.restart(t)
		}
		s.apply(t, h.next(t))
		var flights []flight
		for i := range h.samples {
			flights = append(flights, h.samples[i].randomFlights(r)...)
		}
		s.checkFlights(t, h.last, flights)
		if t.Failed() {
			t.Fatalf("in step %d of %d, with %+v", step+1, steps, options)
		}
	}
	s.readable(t)
}

// randomSteps is the number of snapshots of a random test; worldSteps that in each world
// unless VIPKIT_EVERYTHING is set. The options of the node stay for optionSteps.
const randomSteps, worldSteps, optionSteps = 24, 6, 3
