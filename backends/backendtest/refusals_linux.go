package backendtest

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// lawEveryRefusal: each of many connections to a Service without endpoints is refused, one after the other,
// with the kernel's own limits of ICMP: one message a second to each host, after a few at once. So it must be
// a reset.
func lawEveryRefusal(t *testing.T, s *stage) {
	const connections = 50
	for name, value := range map[string]string{
		"net/ipv4/icmp_ratelimit": "1000", "net/ipv4/icmp_ratemask": "6168",
		"net/ipv6/icmp/ratelimit": "1000", "net/ipv6/icmp/ratemask": "0-1,3-127",
	} {
		testenv.NoError(t, s.node().Sysctl(name, value))
	}
	x := exposed(4)
	snapshot := snapshotOf(t, nodeOptions(), x.Objects())
	s.apply(t, snapshot)
	checked := 0
	for _, f := range flightsTo(x, clients(onlyTCP(), cluster.Client, cluster.Node, cluster.Outside)) {
		if proxy.Route(snapshot, s.packet(f)).Action == proxy.Reject {
			checked++
			s.refusesEach(t, f, connections)
		}
	}
	if checked < 6 {
		t.Errorf("frontends that refuse, of all clients: got %d, want at least one of each client and family", checked)
	}
}

// refusesEach checks that connections are refused one after the other.
func (s *stage) refusesEach(t *testing.T, f flight, connections int) {
	t.Helper()
	for i := range connections {
		replies, err := s.probe(t.Context(), probe{from: f.from, protocol: f.protocol, to: f.to, patience: longPatience})
		testenv.NoError(t, err)
		if r := replies[0]; r.Outcome != lab.Reset && r.Outcome != lab.Refused {
			t.Errorf("from %s to %v: connection %d: got %q, want it to be refused at once", f.from, f.to, i+1, r)
			return
		}
	}
}
