package backendtest

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// randomFlights returns one packet for each frontend of a sample, from any host except
// pods of other nodes: their answers do not pass this node, so that only a part of their
// packets can be checked.
func (s *sample) randomFlights(r *rand.Rand) []flight {
	var out []flight
	for _, to := range s.frontends() {
		f := flight{
			from:     pick(r, atClient, atLocal, atLocal2, atNode, atOutside, atStranger),
			to:       to,
			protocol: pick(r, v1.ProtocolTCP, v1.ProtocolUDP),
		}
		if r.IntN(2) == 0 {
			f.to = netip.AddrPortFrom(ipv6Of(to.Addr()), to.Port())
		}
		out = append(out, f)
	}
	return out
}

// testRandom applies random snapshots, and checks each with random packets.
func (c *Config) testRandom(t *testing.T) {
	r := testenv.Random(t)
	s := c.setUp(t)
	h := s.newHistory(r, 6)
	steps := randomSteps
	if !c.isEverything() {
		steps = worldSteps
	}
	for step := range steps {
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
			t.Fatalf("in step %d of %d", step+1, steps)
		}
	}
	s.readable(t)
}

// randomSteps is the number of snapshots of a random test; worldSteps that in each world
// unless VIPKIT_EVERYTHING is set.
const randomSteps, worldSteps = 20, 6
