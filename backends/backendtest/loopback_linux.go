package backendtest

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// loopbackSteps is the number of snapshots of the test of loopback addresses.
const loopbackSteps = 4

// testLoopback applies random snapshots to the backend, and to the one that serves node ports at
// loopback addresses, and checks packets of the node and of others.
func (c *Config) testLoopback(t *testing.T) {
	r := testenv.Random(t)
	s := c.setUp(t)
	o := nodeOptions()
	o.NodePortAddresses.Loopback = snapshots.Prefixes("127.0.0.0/8", "::1/128")
	// The node listens at the node ports of the first samples.
	h := &history{random: r, tracker: s.tracker(o), plain: c.lacks(Affinity), first: cluster.NodePorts}
	h.begin(6)
	var beside proxy.Backend
	s.onNode(t, func() (err error) {
		beside, err = c.Loopback()
		return err
	})
	testenv.CloseAtEnd(t, beside)
	var applied proxy.Snapshot
	for step := range loopbackSteps {
		next := h.next(t)
		s.apply(t, next)
		testenv.NoError(t, s.applyWith(t, beside, applied, next))
		applied = next
		var flights []flight
		for i := range h.samples {
			flights = append(flights, h.samples[i].loopbackFlights()...)
			flights = append(flights, h.samples[i].randomFlights(r)...)
		}
		// Where no Service answers, nothing else does: the node does not listen there.
		flights = slices.DeleteFunc(flights, func(f flight) bool { return proxy.Route(next, s.packet(f)).Action == proxy.Pass })
		s.checkFlights(t, next, flights)
		if t.Failed() {
			t.Fatalf("in step %d of %d", step+1, loopbackSteps)
		}
	}
	if err := beside.Cleanup(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// loopbackFlights returns packets of the node to the node port of a sample at loopback addresses.
func (s *sample) loopbackFlights() (all []flight) {
	for _, to := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		for _, protocol := range transports() {
			all = append(all, flight{from: cluster.Node, to: netip.AddrPortFrom(to, uint16(s.NodePort())), protocol: protocol})
		}
	}
	return all
}
