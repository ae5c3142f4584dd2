package backendtest

import (
	"context"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// trafficSteps is the number of changes, and the number of restarts, while clients
// connect.
const trafficSteps = 3

// testTraffic connects clients to a Service while other Services change and while the
// process is replaced: new and established connections must work.
func (c *Config) testTraffic(t *testing.T) {
	s := c.setUp(t)
	h := s.newHistory(testenv.Random(t), 6)
	steady := exposed(9, cluster.Local, cluster.Remote)
	o := steady.Objects()
	o.HandTo(h.tracker)
	s.apply(t, h.next(t))
	flights := s.reachable(flightsTo(steady, clients(transports(), cluster.Client, cluster.Local, cluster.Node, cluster.Outside)))
	for range trafficSteps {
		s.during(t, flights, func() { s.apply(t, h.next(t)) })
		next := func() {
			s.restart(t)
			s.apply(t, h.next(t))
		}
		if c.lacks(LastingConnections) || c.lacks(Adoption) {
			next() // Without adoption all objects are written again, and packets may see a part of them.
		} else {
			s.during(t, flights, next)
		}
	}
}

// during calls do while clients connect and while connections are established.
func (s *stage) during(t *testing.T, flights []flight, do func()) {
	t.Helper()
	before := s.applied
	lasting, first := s.establish(t, flights)
	ctx, stop := context.WithCancel(t.Context())
	connected := make(chan error, 1)
	var wrong []wrongFlight
	go func() {
		var err error
		for ended := false; err == nil && !ended; {
			ended = ctx.Err() != nil // then this is the last round
			var some []wrongFlight
			_, some, err = s.tryFlights(t.Context(), before, flights, 0, map[flight][]string{})
			wrong = append(wrong, some...)
		}
		connected <- err
	}()
	func() {
		defer stop()
		do()
	}()
	testenv.NoError(t, <-connected)
	for _, w := range wrong {
		t.Errorf("during a change: %s", w.message)
	}
	wantSame(t, lasting, first)
}

// wantSame checks that connections have the same answers as before, and closes them.
func wantSame(t *testing.T, lasting []*lab.Flow, first []lab.Reply) {
	t.Helper()
	for i, again := range lab.AskAll(t.Context(), lasting) {
		if again.String() != first[i].String() {
			t.Errorf("connection: got %q first and %q later, want the same answer", first[i], again)
		}
		lasting[i].Close()
	}
}

// establish opens a connection for each flight of TCP.
func (s *stage) establish(t *testing.T, flights []flight) (lasting []*lab.Flow, first []lab.Reply) {
	t.Helper()
	for _, f := range flights {
		if f.protocol != v1.ProtocolTCP {
			continue
		}
		flows, err := s.open(&probe{from: f.from, protocol: f.protocol, to: f.to})
		testenv.NoError(t, err)
		r := flows[0].Ask(t.Context())
		if !slices.Contains(s.allowed(f, proxy.Route(s.applied, s.packet(f))), r.String()) {
			t.Errorf("before a change: %s: got %s, want an outcome of Route", f, r)
		}
		lasting, first = append(lasting, flows[0]), append(first, r)
	}
	return lasting, first
}
