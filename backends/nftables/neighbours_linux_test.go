package nftables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// Families are independent: removing the affinity map of a Service of one family does not
// keep clients of a Service of the other family from losing their affinity to a removed
// endpoint.
func TestFamiliesPurgeIndependently(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{})
	removed, kept := stickyPort(v1.IPv4Protocol, 0, 2), stickyPort(v1.IPv6Protocol, 1, 2)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), removed, kept))
	s.addClients(t, kept, 10)
	want := s.clients(t, kept)
	delete(want, kept.Cluster[1].Addr.Addr().String())

	one := *kept
	one.Cluster = kept.Cluster[:1]
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), &one))
	if diff := cmp.Diff(want, s.clients(t, kept)); diff != "" {
		t.Errorf("clients by endpoint (-want +got):\n%s", diff)
	}
}

// Rules identify pods also if the route of pods and that of the node are the same.
func TestPodsAndNodeWithTheSameRoute(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{})
	p := stagetest.Port(v1.IPv4Protocol, 0, 2)
	p.Frontends[0].FromInside = proxy.TrafficRoute{Action: proxy.Reject}
	p.Frontends[0].FromOutside = stagetest.Forward(proxy.MasqueradeNever)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
	listing := s.nft(t, "list", "table", "ip", "vipkit")
	for _, want := range []string{"ip saddr 10.0.0.0/9 goto reject-service", "fib saddr type local goto reject-service"} {
		if !strings.Contains(listing, want) {
			t.Errorf("ruleset: got no %q:\n%s", want, listing)
		}
	}
}
