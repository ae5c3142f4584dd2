package backendtest

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// testFailover applies two endpoints, of which one refuses all connections: the other one
// must get them all.
func (c *Config) testFailover(t *testing.T) {
	const tries = 64
	s := c.setUp(t)
	// No server listens at the outside client.
	x := &sample{number: 3, endpoints: []sampleEndpoint{{at: atOutside}, {at: atLocal}}}
	s.apply(t, snapshotOf(t, nodeOptions(), x.objects()))
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		for _, from := range []hostName{atClient, atNode} {
			f := client{from, v1.ProtocolTCP, family}.flightsTo(x)[0]
			replies, err := s.probe(t.Context(), probe{from: from, protocol: f.protocol, to: f.to, tries: tries})
			testenv.NoError(t, err)
			for _, r := range replies {
				if r.Name != string(atLocal) {
					t.Errorf("%s: got %s, want an answer of %s", f, r, atLocal)
				}
			}
		}
	}
}
