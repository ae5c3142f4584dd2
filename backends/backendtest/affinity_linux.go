package backendtest

import (
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

	"github.com/vipkit/vipkit/proxy"
)

// affinitySample is a Service with session affinity and external addresses.
func affinitySample(seconds int32, at ...place) *sample {
	s := &sample{
		number: 5, serviceType: v1.ServiceTypeLoadBalancer, external: v1.ServiceExternalTrafficPolicyCluster,
		externalIP: true, loadBalancer: true, affinity: seconds,
	}
	for _, a := range at {
		s.endpoints = append(s.endpoints, sampleEndpoint{at: a})
	}
	return s
}

// whoAnswers sends one packet and gives the name of the server.
func (s *stage) whoAnswers(ctx context.Context, f flight) (string, error) {
	replies, err := s.probe(ctx, probe{from: f.from, protocol: f.protocol, to: f.to})
	if err != nil {
		return "", err
	}
	if r := replies[0]; r.outcome == answered {
		return r.by, nil
	}
	return "", fmt.Errorf("%s: %s", f, replies[0])
}

// testAffinity holds a backend to what goes beyond a single packet: one client
// keeps its endpoint at all addresses of a service port, until the endpoint goes
// or time is up.
func (c *Config) testAffinity(t *testing.T) {
	s := c.setUp(t)
	all := []place{atLocal, atLocal2, atRemote, atRemote2}
	if c.lacks(Affinity) {
		s.refusesAffinity(t)
		return
	}
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
			t.Run(fmt.Sprintf("%s/%s", protocol, family), func(t *testing.T) {
				s.apply(t, snapshotOf(t, nodeOptions(), affinitySample(300, all...).objects()))
				for _, from := range []place{atClient, atNode, atOutside} {
					c := client{from, protocol, family}
					s.loses(t, c, s.sameEverywhere(t, c), all)
				}
			})
		}
	}
	t.Run("Strangers", func(t *testing.T) { s.heedsNoStrangers(t) })
	t.Run("OtherServices", func(t *testing.T) { s.heedsNoOtherServices(t) })
	t.Run("Fallback", func(t *testing.T) { s.leavesFallback(t) })
	t.Run("Timeout", func(t *testing.T) { s.expires(t, all) })
}

// refusesAffinity applies a Service with affinity to a backend that lacks it,
// beside one without: the error names all ports of the first and none of the other,
// which works.
func (s *stage) refusesAffinity(t *testing.T) {
	s.calm()
	x, other := affinitySample(300, atLocal), &sample{number: 6, endpoints: []sampleEndpoint{{at: atRemote}}}
	snapshot := snapshotOf(t, nodeOptions(), x.objects(), other.objects())
	err := s.backend.Apply(t.Context(), proxy.Snapshot{}, snapshot)
	refused, _ := errors.AsType[proxy.PortErrors](err)
	for p := range snapshot.All() {
		if _, named := refused[p.Name]; named != p.Affinity.Enabled() {
			t.Errorf("Apply: got error %v, which names port %s: %t, want %t", err, p.Name, named, !named)
		}
	}
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		s.asks(t, client{atClient, v1.ProtocolTCP, family}.flightsTo(other)[0], atRemote)
	}
}

// client is somebody who asks at all frontends of a Service.
type client struct {
	from     place
	protocol v1.Protocol
	family   v1.IPFamily
}

func (c client) flightsTo(x *sample) []flight {
	var out []flight
	to := x.frontends()
	if c.from == atNode {
		to = to[:len(to)-1] // at its second address the node is another client
	}
	for _, to := range to {
		if c.family == v1.IPv6Protocol {
			to = netip.AddrPortFrom(twin(to.Addr()), to.Port())
		}
		out = append(out, flight{from: c.from, to: to, protocol: c.protocol})
	}
	return out
}

// sameEverywhere asks at all frontends, again and again, and gives who answers.
func (s *stage) sameEverywhere(t *testing.T, c client) string {
	t.Helper()
	kept := ""
	for range 4 {
		for _, f := range c.flightsTo(affinitySample(300)) {
			by, err := s.whoAnswers(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			if kept == "" {
				kept = by
			}
			if by != kept {
				t.Fatalf("%s: %s answers, but the client had %s before", f, by, kept)
			}
		}
	}
	return kept
}

// loses takes the endpoint of a client away: it gets another one, and keeps that
// when the first one is back.
func (s *stage) loses(t *testing.T, c client, kept string, all []place) {
	t.Helper()
	rest := slices.DeleteFunc(slices.Clone(all), func(p place) bool { return string(p) == kept })
	s.turnTo(t, affinitySample(300, rest...))
	other := s.sameEverywhere(t, c)
	if other == kept {
		t.Fatalf("from %s: %s is gone, and still answers", c.from, kept)
	}
	s.turnTo(t, affinitySample(300, all...))
	if again := s.sameEverywhere(t, c); again != other {
		t.Fatalf("from %s: %s answers, but the client had %s before", c.from, again, other)
	}
}

// turnTo applies a sample and forgets earlier connections: one of UDP lives on, so
// that a new one by chance from the same port would be a part of it.
func (s *stage) turnTo(t *testing.T, x *sample) {
	t.Helper()
	s.apply(t, snapshotOf(t, nodeOptions(), x.objects()))
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
}

// heedsNoStrangers lets clients connect to another host at the number of the node
// port, past the Service: what they get there is no endpoint to keep.
func (s *stage) heedsNoStrangers(t *testing.T) {
	x := affinitySample(300, atLocal, atRemote)
	all := x.objects()
	for _, o := range all.services {
		for i := range o.Spec.Ports {
			o.Spec.Ports[i].NodePort = endpointPort
		}
	}
	s.apply(t, snapshotOf(t, nodeOptions()))
	s.apply(t, snapshotOf(t, nodeOptions(), all))
	for _, from := range []place{atClient, atNode, atOutside} {
		for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
			stranger := flight{from: from, to: netip.AddrPortFrom(s.addr(atRemoteNode, family), endpointPort), protocol: v1.ProtocolTCP}
			if p := s.packet(stranger); p.FromNode || s.world.lets(p.Source.Addr(), p.Destination.Addr()) {
				s.asks(t, stranger, atRemoteNode)
			}
			s.asks(t, client{from, v1.ProtocolTCP, family}.flightsTo(x)[0], atLocal, atRemote)
		}
	}
}

// heedsNoOtherServices lets clients connect to a Service without affinity whose
// port has the number of the node port of one with affinity: an endpoint of one
// Service is none of the other.
func (s *stage) heedsNoOtherServices(t *testing.T) {
	x, other := affinitySample(300, atLocal, atRemote), &sample{number: 6, endpoints: []sampleEndpoint{{at: atLocal2}}}
	own, others := x.objects(), other.objects()
	for _, o := range others.services {
		for i := range o.Spec.Ports {
			o.Spec.Ports[i].Port = x.nodePort()
		}
	}
	s.apply(t, snapshotOf(t, nodeOptions()))
	s.apply(t, snapshotOf(t, nodeOptions(), own, others))
	for _, from := range []place{atClient, atNode, atOutside} {
		for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
			c := client{from, v1.ProtocolTCP, family}
			to := c.flightsTo(other)[0]
			to.to = netip.AddrPortFrom(to.to.Addr(), uint16(x.nodePort()))
			s.asks(t, to, atLocal2)
			s.asks(t, c.flightsTo(x)[0], atLocal, atRemote)
		}
	}
}

// leavesFallback has clients keep an endpoint that terminates, which a Local policy
// takes for want of another one on the node. When there is one they must let go,
// though what the Cluster policy selects has never had the first.
func (s *stage) leavesFallback(t *testing.T) {
	yes, no := true, false
	x := affinitySample(300)
	x.external = v1.ServiceExternalTrafficPolicyLocal
	terminates := discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	x.endpoints = []sampleEndpoint{{at: atLocal, conditions: terminates}, {at: atRemote}}
	s.apply(t, snapshotOf(t, nodeOptions(), x.objects()))
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		s.asks(t, client{atOutside, v1.ProtocolTCP, family}.flightsTo(x)[1], atLocal)
	}
	x.endpoints = append(x.endpoints, sampleEndpoint{at: atLocal2})
	s.apply(t, snapshotOf(t, nodeOptions(), x.objects()))
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		s.asks(t, client{atOutside, v1.ProtocolTCP, family}.flightsTo(x)[1], atLocal2)
	}
}

// asks sends one packet, which one of some places must answer.
func (s *stage) asks(t *testing.T, f flight, of ...place) {
	t.Helper()
	if by, err := s.whoAnswers(t.Context(), f); err != nil || !slices.Contains(of, place(by)) {
		t.Errorf("%s: got an answer of %q and error %v, want one of %q", f, by, err, of)
	}
}

// expires waits until affinity has run out, again and again until a client gets
// another endpoint. One of four is the same again in a quarter of all cases, and
// never another one in no more than one of a hundred million.
func (s *stage) expires(t *testing.T, all []place) {
	s.apply(t, snapshotOf(t, nodeOptions(), affinitySample(1, all...).objects()))
	f := client{atOutside, v1.ProtocolTCP, v1.IPv4Protocol}.flightsTo(affinitySample(1))[0]
	first, err := s.whoAnswers(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	const times = 14
	for range times {
		time.Sleep(1300 * time.Millisecond) // the kernel's clock is what is tested
		by, err := s.whoAnswers(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if by != first {
			return
		}
	}
	t.Errorf("%s still answers after affinity has run out %d times", first, times)
}

// testBalance looks at how many connections each endpoint gets. Each time it is
// another Service: flows of UDP last, and one by chance from the same port would be a
// part of an earlier one.
func (c *Config) testBalance(t *testing.T) {
	s := c.setUp(t)
	for i, all := range [][]place{
		{atLocal, atRemote}, {atLocal, atLocal2, atRemote}, {atLocal, atLocal2, atRemote, atRemote2, atNode},
	} {
		x := &sample{number: 3 + i}
		for _, a := range all {
			x.endpoints = append(x.endpoints, sampleEndpoint{at: a})
		}
		s.apply(t, snapshotOf(t, nodeOptions(), x.objects()))
		for _, f := range []flight{
			client{atClient, v1.ProtocolTCP, v1.IPv4Protocol}.flightsTo(x)[0],
			client{atOutside, v1.ProtocolUDP, v1.IPv6Protocol}.flightsTo(x)[0],
		} {
			s.balances(t, f, len(all))
		}
	}
}

// balances makes many connections and wants each endpoint to get its share. The
// bounds are five standard deviations wide: a fair dataplane leaves them once in
// a million.
func (s *stage) balances(t *testing.T, f flight, endpoints int) {
	t.Helper()
	const tries, rounds = 60, 10
	counts := map[string]int{}
	for range rounds {
		replies, err := s.probe(t.Context(), probe{from: f.from, protocol: f.protocol, to: f.to, tries: tries})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range replies {
			counts[r.by]++
		}
	}
	if len(counts) != endpoints {
		t.Errorf("%s: %d endpoints answered, want %d (all: %v)", f, len(counts), endpoints, counts)
	}
	const n = tries * rounds
	share := 1 / float64(endpoints)
	slack := 5 * math.Sqrt(n*share*(1-share))
	for by, got := range counts {
		if math.Abs(float64(got)-n*share) > slack {
			t.Errorf("%s: %s answered %d of %d connections, want %.0f ± %.0f (all: %v)", f, by, got, n, n*share, slack, counts)
		}
	}
}
