package backendtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// affinitySample is a Service with session affinity and external addresses.
func affinitySample(seconds int32, at ...cluster.Name) *cluster.Sample {
	s := exposed(5, at...)
	s.Type, s.Affinity = v1.ServiceTypeLoadBalancer, seconds
	return s
}

// serverFor sends one packet and returns the name of the server that answers.
func (s *stage) serverFor(ctx context.Context, f flight) (string, error) {
	replies, err := s.probe(ctx, probe{from: f.from, protocol: f.protocol, to: f.to})
	if err != nil {
		return "", err
	}
	if r := replies[0]; r.Outcome == lab.Answered {
		return r.Name, nil
	}
	return "", fmt.Errorf("%s: %s", f, replies[0])
}

// testAffinity checks session affinity with several connections: a client keeps its
// endpoint until the endpoint is removed or the timeout has passed.
func (c *Config) testAffinity(t *testing.T) {
	s := c.setUp(t)
	all := []cluster.Name{cluster.Local, cluster.Local2, cluster.Remote, cluster.Remote2}
	if c.lacks(Affinity) {
		s.refusesAffinity(t)
		return
	}
	for _, protocol := range transports() {
		for _, family := range ipaddr.Families() {
			t.Run(fmt.Sprintf("%s/%s", protocol, family), func(t *testing.T) {
				s.apply(t, snapshotOf(t, nodeOptions(), affinitySample(300, all...).Objects()))
				for _, from := range []cluster.Name{cluster.Client, cluster.Node, cluster.Outside} {
					s.loses(t, client{from, protocol, family}, all)
				}
			})
		}
	}
	t.Run("Strangers", func(t *testing.T) { s.ignoresOtherHosts(t) })
	t.Run("OtherServices", func(t *testing.T) { s.ignoresOtherServices(t) })
	t.Run("Fallback", func(t *testing.T) { s.leavesFallbackEndpoint(t) })
	if !s.isLacking(AffinityTimeout) {
		t.Run("Timeout", func(t *testing.T) { s.expires(t, all) })
	}
}

// refusesAffinity applies a Service with affinity to a backend that lacks it, and
// another Service without: the error names all ports of the first and none of the
// other, which works.
func (s *stage) refusesAffinity(t *testing.T) {
	x, other := affinitySample(300, cluster.Local), &cluster.Sample{Number: 6, Endpoints: cluster.EndpointsAt(cluster.Remote)}
	s.refuses(t, snapshotOf(t, nodeOptions(), x.Objects(), other.Objects()), func(p *proxy.ServicePort) bool { return p.Affinity.Enabled() })
	for _, c := range clients(onlyTCP(), cluster.Client) {
		s.wantAnswerOf(t, c.flightsTo(other)[0], cluster.Remote)
	}
}

// refuses applies a snapshot to a backend that lacks something: the error names all service ports that need it and
// no others.
func (s *stage) refuses(t *testing.T, snapshot proxy.Snapshot, needs func(*proxy.ServicePort) bool) {
	t.Helper()
	s.calm()
	err := s.applyOnce(t, proxy.Snapshot{}, snapshot)
	refused, _ := errors.AsType[proxy.PortErrors](err)
	for p := range snapshot.All() {
		if _, named := refused[p.Name]; named != needs(p) {
			t.Errorf("Apply: got error %v, names port %s: %t, want %t", err, p.Name, named, !named)
		}
	}
}

// client is a client that connects to all frontends of a Service.
type client struct {
	from     cluster.Name
	protocol v1.Protocol
	family   v1.IPFamily
}

// clients returns clients of both families at some hosts, by some protocols.
func clients(protocols []v1.Protocol, at ...cluster.Name) (all []client) {
	for _, from := range at {
		for _, protocol := range protocols {
			for _, family := range ipaddr.Families() {
				all = append(all, client{from, protocol, family})
			}
		}
	}
	return all
}

// transports are the protocols of most Services, and onlyTCP is the one of those.
func transports() []v1.Protocol { return []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} }

func onlyTCP() []v1.Protocol { return transports()[:1] }

// flightsTo returns the packets of clients to all addresses that a sample may have.
func flightsTo(x *cluster.Sample, from []client) (all []flight) {
	for _, c := range from {
		all = append(all, c.flightsTo(x)...)
	}
	return all
}

func (c client) flightsTo(x *cluster.Sample) []flight {
	var out []flight
	to := x.Frontends()
	if c.from == cluster.Node {
		to = to[:len(to)-1] // connections of the node to its second address have another source
	}
	for _, to := range to {
		if c.family == v1.IPv6Protocol {
			to = netip.AddrPortFrom(cluster.IPv6Of(to.Addr()), to.Port())
		}
		out = append(out, flight{from: c.from, to: to, protocol: c.protocol})
	}
	return out
}

// endpointsOf connects to all frontends repeatedly, and returns the server of each, which
// must always be the same. Unless the backend lacks [FrontendAffinity], all frontends must
// have the same one.
func (s *stage) endpointsOf(t *testing.T, c client) []string {
	t.Helper()
	flights := c.flightsTo(affinitySample(300))
	servers := make([]string, len(flights))
	for range 4 {
		for i, f := range flights {
			by, err := s.serverFor(t.Context(), f)
			testenv.NoError(t, err)
			first := 0
			if s.isLacking(FrontendAffinity) {
				first = i
			}
			servers[first] = cmp.Or(servers[first], by)
			if servers[i] = by; by != servers[first] {
				t.Fatalf("%s: got server %s, want %s as before", f, by, servers[first])
			}
		}
	}
	return servers
}

// loses removes the endpoint of a client: it gets another one, and keeps that after the
// first one is added again. Frontends where it has another endpoint keep theirs.
func (s *stage) loses(t *testing.T, c client, all []cluster.Name) {
	t.Helper()
	before := s.endpointsOf(t, c)
	gone := before[0]
	rest := slices.DeleteFunc(slices.Clone(all), func(p cluster.Name) bool { return string(p) == gone })
	s.apply(t, snapshotOf(t, nodeOptions(), affinitySample(300, rest...).Objects()))
	others := s.endpointsOf(t, c)
	for i, by := range others {
		switch {
		case by == gone:
			t.Fatalf("from %s: got server %s, which was removed, want another one", c.from, by)
		case by != before[i] && before[i] != gone:
			t.Fatalf("from %s: frontend %d: got server %s, want %s as before", c.from, i, by, before[i])
		}
	}
	s.apply(t, snapshotOf(t, nodeOptions(), affinitySample(300, all...).Objects()))
	if again := s.endpointsOf(t, c); !slices.Equal(again, others) {
		t.Fatalf("from %s: got servers %s, want %s as before", c.from, again, others)
	}
}

// ignoresOtherHosts makes clients connect to another host, at the port number of the node
// port, but not through the Service: affinity must not keep that host as endpoint.
func (s *stage) ignoresOtherHosts(t *testing.T) {
	x := affinitySample(300, cluster.Local, cluster.Remote)
	all := x.Objects()
	for _, o := range all.Services {
		for i := range o.Spec.Ports {
			o.Spec.Ports[i].NodePort = cluster.EndpointPort
		}
	}
	s.apply(t, snapshotOf(t, nodeOptions()))
	s.apply(t, snapshotOf(t, nodeOptions(), all))
	for _, c := range clients(onlyTCP(), cluster.Client, cluster.Node, cluster.Outside) {
		stranger := flight{from: c.from, to: netip.AddrPortFrom(s.host(cluster.RemoteNode).Addr(c.family), cluster.EndpointPort), protocol: c.protocol}
		if p := s.packet(stranger); p.FromNode || s.world.allows(p.Source.Addr(), p.Destination.Addr()) {
			s.wantAnswerOf(t, stranger, cluster.RemoteNode)
		}
		s.wantAnswerOf(t, c.flightsTo(x)[0], cluster.Local, cluster.Remote)
	}
}

// ignoresOtherServices makes clients connect to a Service without affinity whose
// port has the number of the node port of one with affinity: affinity must not keep an
// endpoint of the other Service.
func (s *stage) ignoresOtherServices(t *testing.T) {
	x, other := affinitySample(300, cluster.Local, cluster.Remote), &cluster.Sample{Number: 6, Endpoints: cluster.EndpointsAt(cluster.Local2)}
	own, others := x.Objects(), other.Objects()
	for _, o := range others.Services {
		for i := range o.Spec.Ports {
			o.Spec.Ports[i].Port = int32(x.NodePort())
		}
	}
	s.apply(t, snapshotOf(t, nodeOptions()))
	s.apply(t, snapshotOf(t, nodeOptions(), own, others))
	for _, c := range clients(onlyTCP(), cluster.Client, cluster.Node, cluster.Outside) {
		to := c.flightsTo(other)[0]
		to.to = netip.AddrPortFrom(to.to.Addr(), x.NodePort())
		s.wantAnswerOf(t, to, cluster.Local2)
		s.wantAnswerOf(t, c.flightsTo(x)[0], cluster.Local, cluster.Remote)
	}
}

// leavesFallbackEndpoint makes clients keep a terminating endpoint, which a Local policy
// selects if the node has no ready one. When the node gets a ready endpoint, they must use
// that, although the pool of the Cluster policy never had the first one.
func (s *stage) leavesFallbackEndpoint(t *testing.T) {
	yes, no := true, false
	x := affinitySample(300)
	x.External = v1.ServiceExternalTrafficPolicyLocal
	terminates := discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	x.Endpoints = []cluster.Endpoint{{At: cluster.Local, Conditions: terminates}, {At: cluster.Remote}}
	for _, want := range []cluster.Name{cluster.Local, cluster.Local2} {
		if want == cluster.Local2 {
			x.Endpoints = append(x.Endpoints, cluster.Endpoint{At: want})
		}
		s.apply(t, snapshotOf(t, nodeOptions(), x.Objects()))
		for _, c := range clients(onlyTCP(), cluster.Outside) {
			s.wantAnswerOf(t, c.flightsTo(x)[1], want)
		}
	}
}

// wantAnswerOf sends one packet, which one of the hosts must answer.
func (s *stage) wantAnswerOf(t *testing.T, f flight, of ...cluster.Name) {
	t.Helper()
	if by, err := s.serverFor(t.Context(), f); err != nil || !slices.Contains(of, cluster.Name(by)) {
		t.Errorf("%s: got server %q and error %v, want one of %q", f, by, err, of)
	}
}

// expires waits for the timeout of affinity repeatedly, until a client gets another
// endpoint. With four endpoints it gets the same one again with a probability of 1/4, and
// never another one with less than one in a hundred million.
func (s *stage) expires(t *testing.T, all []cluster.Name) {
	s.apply(t, snapshotOf(t, nodeOptions(), affinitySample(1, all...).Objects()))
	f := client{cluster.Outside, v1.ProtocolTCP, v1.IPv4Protocol}.flightsTo(affinitySample(1))[0]
	first, err := s.serverFor(t.Context(), f)
	testenv.NoError(t, err)
	const times = 14
	for range times {
		time.Sleep(1300 * time.Millisecond) // the test needs the kernel's clock
		by, err := s.serverFor(t.Context(), f)
		testenv.NoError(t, err)
		if by != first {
			return
		}
	}
	t.Errorf("server %s: got it again after %d timeouts of affinity, want another one", first, times)
}

// testBalance counts the connections of each endpoint, of another Service in each round.
func (c *Config) testBalance(t *testing.T) {
	s := c.setUp(t)
	for i, all := range [][]cluster.Name{
		{cluster.Local, cluster.Remote}, {cluster.Local, cluster.Local2, cluster.Remote}, {cluster.Local, cluster.Local2, cluster.Remote, cluster.Remote2, cluster.Node},
	} {
		x := &cluster.Sample{Number: 3 + i, Endpoints: cluster.EndpointsAt(all...)}
		s.apply(t, snapshotOf(t, nodeOptions(), x.Objects()))
		for _, f := range []flight{
			client{cluster.Client, v1.ProtocolTCP, v1.IPv4Protocol}.flightsTo(x)[0],
			client{cluster.Outside, v1.ProtocolUDP, v1.IPv6Protocol}.flightsTo(x)[0],
		} {
			s.balances(t, f, len(all))
		}
	}
}

// balances makes many connections and checks that each endpoint gets its share. The
// limits are five standard deviations: a fair dataplane exceeds them once in a million.
func (s *stage) balances(t *testing.T, f flight, endpoints int) {
	t.Helper()
	const tries, rounds = 60, 10
	counts := map[string]int{}
	for range rounds {
		replies, err := s.probe(t.Context(), probe{from: f.from, protocol: f.protocol, to: f.to, tries: tries})
		testenv.NoError(t, err)
		for _, r := range replies {
			counts[r.Name]++
		}
	}
	if len(counts) != endpoints {
		t.Errorf("%s: got answers of %d endpoints, want %d (all: %v)", f, len(counts), endpoints, counts)
	}
	const n = tries * rounds
	share := 1 / float64(endpoints)
	slack := 5 * math.Sqrt(n*share*(1-share))
	for by, got := range counts {
		if math.Abs(float64(got)-n*share) > slack {
			t.Errorf("%s: server %s: got %d of %d connections, want %.0f ± %.0f (all: %v)", f, by, got, n, n*share, slack, counts)
		}
	}
}
