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

// Removing a Service, however large, does not write other Services again: they keep their
// clients, and the operations are only those for the removed Service.
func TestDeletionKeepsOtherServices(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{})
	sticky := stickyPort(v1.IPv4Protocol, 0, 2)
	all := []*proxy.ServicePort{sticky}
	for i := range 300 {
		all = append(all, stagetest.Port(v1.IPv4Protocol, 10+i, 1))
	}
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
	large := stagetest.Port(v1.IPv4Protocol, 5000, 600)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), append(all, large)...))
	s.addClients(t, sticky, 100)
	want := s.clients(t, sticky)
	before := s.Operations(t)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
	if n := s.Operations(t) - before; n > 1500 {
		t.Errorf("operations for removing a Service with 600 endpoints: got %d, want at most 1500", n)
	}
	if diff := cmp.Diff(want, s.clients(t, sticky)); diff != "" {
		t.Errorf("clients of another Service (-want +got):\n%s", diff)
	}
}

// Prefix lengths of Service CIDRs need not be multiples of 8.
func TestRangesOfAnyLength(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{})
	s.Apply(t, proxy.NewSnapshot(&proxy.Node{ServiceCIDRs: stagetest.Prefixes("10.96.0.0/12", "fd00:96::/108")}))
	listing := s.listing(t)
	for _, want := range []string{"ip daddr 10.96.0.0/12 fib daddr type != local drop", "ip6 daddr fd00:96::/108 fib daddr type != local drop"} {
		if !strings.Contains(listing, want) {
			t.Errorf("ruleset: got no %q:\n%s", want, listing)
		}
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
