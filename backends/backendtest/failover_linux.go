package backendtest

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// testFailover applies two endpoints, of which one refuses all connections: the other one
// must get them all.
func (c *Config) testFailover(t *testing.T) {
	const tries = 64
	s := c.setUp(t)
	// No server listens at the outside client.
	x := &cluster.Sample{Number: 3, Endpoints: []cluster.Endpoint{{At: cluster.Outside}, {At: cluster.Local}}}
	s.apply(t, snapshotOf(t, nodeOptions(), x.Objects()))
	for _, c := range clients(onlyTCP(), cluster.Client, cluster.Node) {
		f := c.flightsTo(x)[0]
		replies, err := s.probe(t.Context(), probe{from: f.from, protocol: f.protocol, to: f.to, tries: tries})
		testenv.NoError(t, err)
		for _, r := range replies {
			if r.Name != string(cluster.Local) {
				t.Errorf("%s: got %s, want an answer of %s", f, r, cluster.Local)
			}
		}
	}
}
