package nftables

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

func TestFamilies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		families []v1.IPFamily
		want     []string
	}{
		{nil, []string{"table ip vipkit", "table ip6 vipkit"}},
		{[]v1.IPFamily{v1.IPv4Protocol}, []string{"table ip vipkit"}},
		{[]v1.IPFamily{v1.IPv6Protocol}, []string{"table ip6 vipkit"}},
		{[]v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}, []string{"table ip vipkit", "table ip6 vipkit"}},
	} {
		s := newStage(t)
		s.Apply(t, sampleSnapshot())
		s.Options.Families = c.families
		s.Restart(t)
		s.Apply(t, sampleSnapshot())
		got := strings.Split(strings.TrimSpace(s.nft(t, "list", "tables")), "\n")
		slices.Sort(got)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("families %v: tables (-want +got):\n%s", c.families, diff)
		}
	}
}

func TestNewRefusesOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{
		{Identity: identity("No", 0, 0)},
		{Identity: identity("", 3, 0)},
		{Families: []v1.IPFamily{"IPv5"}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("New(%+v): got no error, want one", o)
		}
	}
}

// applyRefused applies a snapshot, and expects that one port is refused, at the latest by an
// Apply from the zero snapshot.
func (s *stage) applyRefused(t *testing.T, start, want proxy.Snapshot, name proxy.ServicePortName) {
	t.Helper()
	err := s.Backend.Apply(t.Context(), start, want)
	for range 2 {
		if errors.Is(err, proxy.ErrDataplaneLost) {
			err = s.Backend.Apply(t.Context(), proxy.Snapshot{}, want)
		}
	}
	var failed proxy.PortErrors
	if !errors.As(err, &failed) || len(failed) != 1 || failed[name] == nil {
		t.Fatalf("Apply: got error %v, want one that names %v alone", err, name)
	}
}

// Not every kernel has SCTP sockets, so this test sends no packets: the rules and elements
// for SCTP are those for TCP except for the protocol.
func TestSCTP(t *testing.T) {
	t.Parallel()
	listing := func(protocol v1.Protocol) string {
		s := newStage(t)
		p := stagetest.Port(v1.IPv4Protocol, 0, 3)
		p.Frontends = append(p.Frontends, stagetest.NodePort(v1.IPv4Protocol, 30000))
		p.Name.Protocol = protocol
		world := proxy.NewSnapshot(stagetest.Node(), p)
		s.Apply(t, world)
		s.Restart(t)
		s.Apply(t, world)
		return s.listing(t)
	}
	want := strings.ReplaceAll(listing(v1.ProtocolTCP), " tcp . ", " sctp . ")
	want = strings.ReplaceAll(want, "\ntcp . ", "\nsctp . ")
	if diff := cmp.Diff(want, listing(v1.ProtocolSCTP)); diff != "" {
		t.Errorf("ruleset for SCTP (-want +got):\n%s", diff)
	}
}
