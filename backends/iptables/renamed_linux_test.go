package iptables

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// ownChain finds the lines of a listing that declare chains of the identity.
var ownChain = regexp.MustCompile(`(?m)^:(VIPKIT-\S+)`)

// Whichever chains another program renames, a resync and Cleanup remove all rules that lead to them, so that
// packets follow no rule of before. The renamed chains stay, and so do empty ones to which they lead.
func TestRenamedChains(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Apply(t, sampleSnapshot())
		want := s.dump(t)
		for _, table := range []string{"nat", "filter"} {
			chains := ownChain.FindAllStringSubmatch(s.run(t, "", "iptables-save", "-t", table), -1)
			for i, chain := range chains {
				if i > 20 {
					break
				}
				s.run(t, "", "iptables", "-w", "5", "-t", table, "-E", chain[1], "renamed")
				if other := chains[(i+1)%len(chains)]; i%4 < 2 {
					s.run(t, "", "iptables", "-w", "5", "-t", table, "-E", other[1], "renamed2")
				}
				if i%2 == 0 {
					s.Restart(t)
					s.Apply(t, sampleSnapshot())
					if diff := cmp.Diff(want, s.dump(t)); diff != "" {
						t.Errorf("%s was renamed: rules after the repair (-want +got):\n%s", chain[1], diff)
					}
				}
				if err := s.Backend.Cleanup(t.Context()); err != nil && !strings.Contains(err.Error(), "rules of other programs jump to") {
					t.Errorf("%s was renamed: Cleanup: %v", chain[1], err)
				}
				s.run(t, "*"+table+"\n:renamed -\n:renamed2 -\n-X renamed\n-X renamed2\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5") // fails if a rule leads there
				testenv.NoError(t, s.Backend.Cleanup(t.Context()))
				if left := s.run(t, "", "iptables-save"); strings.Contains(left, "VIPKIT") {
					t.Errorf("%s was renamed: rules after Cleanup: got\n%s\nwant none of own chains", chain[1], left)
				}
				s.Applied = proxy.Snapshot{}
				s.Apply(t, sampleSnapshot())
			}
		}
	})
}

// A change of a chain that another program has renamed does not succeed: a new chain of its name would
// have no jumps, and packets would follow the rules of before. A resync repairs the rules.
func TestChangedRenamedChains(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		port := stagetest.Port(v1.IPv4Protocol, 0, 2)
		port.Frontends = []proxy.Frontend{stagetest.NodePort(v1.IPv4Protocol, 30_000)} // only a chain of the port leads to the renamed one
		before := proxy.NewSnapshot(stagetest.Node(), port)
		for what, next := range map[string]proxy.Snapshot{
			"another endpoint": proxy.NewSnapshot(stagetest.Node(), moved(port, 500)),
			"a removal":        proxy.NewSnapshot(stagetest.Node()),
		} {
			s.Applied = proxy.Snapshot{}
			s.Apply(t, before)
			s.run(t, "", "iptables", "-w", "5", "-t", "nat", "-E", newNames("vipkit").of(prefixCluster, port.Name, 0), "renamed")
			if err := s.Backend.Apply(t.Context(), s.Applied, next); !errors.Is(err, proxy.ErrDataplaneLost) {
				t.Errorf("%s after the chain was renamed: got error %v, want %v", what, err, proxy.ErrDataplaneLost)
			}
			s.Applied = proxy.Snapshot{}
			s.Apply(t, next)
			s.holds(t, next, "after "+what)
			s.run(t, "*nat\n:renamed -\n-X renamed\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		}
	})
}

// Own jumps are known by their comments, also in chains of other programs, with other matches and
// with other targets. The other rules of such chains stay.
func TestCopiedJumps(t *testing.T) {
	t.Parallel()
	const comment = `-m comment --comment "kubernetes service portals (VIPKIT)" `
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Apply(t, sampleSnapshot())
		s.run(t, "*nat\n:OTHER - [0:0]\n:ELSEWHERE - [0:0]\n-A OTHER -j RETURN\n-A OTHER "+comment+"-j VIPKIT-SERVICES\n"+
			"-A OTHER -s 192.0.2.1/32 "+comment+"-j VIPKIT-SERVICES\n-A OUTPUT -p tcp "+comment+"-j ELSEWHERE\n"+
			"-A OTHER -m comment --comment \"kubernetes service portals (OTHER)\" -j VIPKIT-SERVICES\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		s.Restart(t)
		s.Apply(t, sampleSnapshot())
		nat := s.run(t, "", "iptables-save", "-t", "nat")
		if n := strings.Count(nat, "(VIPKIT)"); n != 4 {
			t.Errorf("own jumps of table nat: got %d, want 4:\n%s", n, nat)
		}
		if n := strings.Count(nat, "-A OTHER"); n != 2 {
			t.Errorf("rules of another chain: got %d, want 2:\n%s", n, nat)
		}
	})
}
