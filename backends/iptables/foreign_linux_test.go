package iptables

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// nft loads a ruleset, or lists the existing one if ruleset is empty.
func (s *stage) nft(t testing.TB, ruleset string) string {
	t.Helper()
	args := []string{"-f", "-"}
	if ruleset == "" {
		args = []string{"list", "ruleset"}
	}
	out, err := netnstest.Run(t, s.NS, ruleset, netnstest.NFT(t), args...)
	testenv.NoError(t, err)
	return out
}

// Foreign rules in the kernel's own chains are kept even if they jump to the identity's
// chains, or have comments that look like own rules.
func TestForeignJumpsAreLeftAlone(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Apply(t, sampleSnapshot())
		for _, rule := range [][]string{
			{"-s", "192.0.2.0/24", "-j", "VIPKIT-SERVICES"},
			{"-m", "comment", "--comment", "mine", "-j", "VIPKIT-SERVICES"},
			{"-m", "comment", "--comment", "x\" -j VIPKIT-SERVICES", "-j", "ACCEPT"},
			{"-m", "comment", "--comment", "x\ny", "-j", "ACCEPT"},
			{"-i", "-j", "-j", "VIPKIT-SERVICES"},
		} {
			s.run(t, "", "iptables", append([]string{"-w", "5", "-t", "nat", "-A", "PREROUTING"}, rule...)...)
		}
		before := withoutCounters(s.run(t, "", "iptables-save"))
		s.Restart(t)
		s.Apply(t, sampleSnapshot())
		if n := s.Operations(t); n != 0 {
			t.Errorf("operations of a restart beside foreign rules: got %d, want 0", n)
		}
		if diff := cmp.Diff(before, withoutCounters(s.run(t, "", "iptables-save"))); diff != "" {
			t.Errorf("all rules (-before +after):\n%s", diff)
		}
		if err := s.Backend.Cleanup(t.Context()); err == nil || !strings.Contains(err.Error(), "VIPKIT-SERVICES") {
			t.Errorf("Cleanup: got error %v, want one that names the chain to which foreign rules jump", err)
		}
		left := s.run(t, "", "iptables-save", "-t", "nat")
		if n := strings.Count(left, "-A PREROUTING "); n != 5 {
			t.Errorf("foreign rules after Cleanup: got %d, want 5:\n%s", n, left)
		}
		if n := strings.Count(left, "\n-A VIPKIT-"); n != 0 {
			t.Errorf("rules of chains that Cleanup keeps: got %d, want none:\n%s", n, left)
		}
	})
}

// Chains that foreign rules jump to stay, empty, while they cannot be removed. Resyncs write
// nothing because of them: a resync that writes at each time would count as a fault.
func TestChainsThatForeignRulesJumpTo(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		few := proxy.NewSnapshot(stagetest.Node(), newPorts(v1.IPv4Protocol, 1, 2)...)
		fresh := newStage(t, s.Options)
		fresh.Apply(t, few)
		want := fresh.effectiveRules(t)
		resync := func(what string, writes bool) {
			t.Helper()
			before := s.Operations(t)
			s.Applied = proxy.Snapshot{}
			s.Apply(t, few)
			if n := s.Operations(t) - before; (n > 0) != writes {
				t.Errorf("operations of a resync %s: got %d, want some is %v", what, n, writes)
			}
			if diff := cmp.Diff(want, s.effectiveRules(t)); diff != "" {
				t.Errorf("rules %s (-first load +got):\n%s", what, diff)
			}
		}
		s.Apply(t, few)
		s.Apply(t, sampleSnapshot())
		own := regexp.MustCompile(`VIPKIT-\w+-[A-Z2-7]{16}`).FindAllString(s.run(t, "", "iptables-save", "-t", "nat"), -1)
		jumps := "-A FOREIGN -j " + strings.Join(own, "\n-A FOREIGN -j ")
		s.run(t, "*nat\n:FOREIGN - [0:0]\n"+jumps+"\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		s.Restart(t)
		s.Apply(t, few)
		resync("beside foreign jumps", false)
		resync("beside foreign jumps, again", false)

		s.run(t, "", "iptables", "-w", "5", "-t", "nat", "-A", own[len(own)-1], "-j", "ACCEPT")
		resync("after another program added a rule", true)
		resync("after its removal", false)
		s.run(t, "", "iptables", "-w", "5", "-t", "nat", "-F", "VIPKIT-SERVICES")
		resync("after another program emptied a chain", true)
		resync("after the repair", false)

		s.run(t, "*nat\n-F FOREIGN\n-X FOREIGN\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		resync("without foreign jumps", true)
		resync("again without them", false)
		if diff := cmp.Diff(fresh.dump(t), s.dump(t)); diff != "" {
			t.Errorf("rules without foreign jumps (-first load +got):\n%s", diff)
		}
	})
}

// Foreign rules in own chains that cannot be written as iptables prints them are removed with
// the chain.
func TestUnwritableRulesInOwnChains(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Apply(t, sampleSnapshot())
		want := s.dump(t)
		s.run(t, "", "iptables", "-w", "5", "-t", "nat", "-A", "VIPKIT-SERVICES", "-m", "comment", "--comment", "x\nCOMMIT\n*raw", "-j", "ACCEPT")
		if s.Options.Flavour == NFT {
			s.nft(t, "add rule ip nat VIPKIT-SERVICES ip daddr vmap { 192.0.2.1 : drop }")
		}
		if s.dump(t) == want {
			t.Error("rules after the change: got no difference, want one")
		}
		s.Applied = proxy.Snapshot{}
		s.Apply(t, sampleSnapshot())
		testenv.Same(t, want, s.dump(t), "rules after the repair")
	})
}

// unprintableOutput returns a table with a rule that iptables cannot print.
func unprintableOutput(table, hook string) string {
	return "table " + table + " {\n\tchain OUTPUT {\n\t\t" + hook + "; policy accept;\n\t\tnumgen random mod 2 0 counter\n\t}\n}\n"
}

// Tables that only nft can print do not matter if the backend does not use them.
func TestTablesOfNFT(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{Flavour: NFT})
	in := unprintableOutput
	const early = "type route hook output priority -150"
	s.nft(t, in("ip mangle", early)+in("ip6 mangle", early)+in("inet filter", early))
	if printed := s.run(t, "", "iptables-save"); !strings.Contains(printed, "is incompatible") {
		t.Errorf("iptables-save: got\n%s\nwant incompatible tables", printed)
	}
	before := s.nft(t, "")
	s.Apply(t, sampleSnapshot())
	s.Restart(t)
	s.Apply(t, sampleSnapshot())
	if n := s.Operations(t); n != 0 {
		t.Errorf("operations of a restart: got %d, want 0", n)
	}
	if err := s.Backend.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	if after := s.nft(t, ""); !strings.HasPrefix(after, before) {
		t.Errorf("foreign tables: got\n%s\nwant\n%s", after, before)
	}
}

// Foreign rules that iptables cannot print, in the tables and chains that the backend uses, do
// not prevent changes, repairs and Cleanup.
func TestUnprintableTable(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{Flavour: NFT})
	s.nft(t, unprintableOutput("ip nat", "type nat hook output priority -100"))
	snapshots := variants()
	for step, w := range append(snapshots, snapshots[0]) {
		fresh := newStage(t, s.Options)
		fresh.Apply(t, w)
		want := fresh.effectiveRules(t)
		for _, how := range []string{"a change", "a resync", "a restart", "a repair"} {
			switch how {
			case "a resync":
				s.Applied = proxy.Snapshot{}
			case "a restart":
				s.Restart(t)
			case "a repair":
				s.nft(t, "flush chain ip nat VIPKIT-SERVICES\nflush chain ip nat PREROUTING\ninsert rule ip filter VIPKIT-SERVICES ct mark 5\n")
				s.Applied = proxy.Snapshot{}
			}
			s.Apply(t, w)
			if diff := cmp.Diff(want, s.effectiveRules(t)); diff != "" {
				t.Fatalf("%s in step %d: rules (-first load +got):\n%s", how, step, diff)
			}
		}
	}
	if err := s.Backend.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	if left := s.nft(t, ""); strings.Contains(left, "VIPKIT") || strings.Count(left, "numgen random mod 2 0 counter") != 1 {
		t.Errorf("ruleset after Cleanup: got\n%s\nwant only the foreign rule", left)
	}
}

// A table that another program has made dormant serves again after a full apply.
func TestDormantTables(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{Flavour: NFT})
	s.Apply(t, sampleSnapshot())
	want := s.effectiveRules(t)
	for _, table := range []string{"ip nat", "ip filter", "ip6 nat"} {
		s.nft(t, "add table "+table+" { flags dormant; }")
		if cmp.Equal(want, s.effectiveRules(t)) {
			t.Errorf("dormant table %s: got its rules in effect, want none", table)
		}
		before := s.Operations(t)
		s.Applied = proxy.Snapshot{}
		s.Apply(t, sampleSnapshot())
		testenv.Same(t, want, s.effectiveRules(t), "rules after table %s was dormant", table)
		testenv.Same(t, 1, s.Operations(t)-before, "operations after table %s was dormant", table)
	}
}

// If iptables-save fails because of foreign tables, it is started again for each used table.
func TestSaveFailsAtForeignTables(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT})
	s.Apply(t, sampleSnapshot())
	file := stubProgram(t, s, "save", "if [ $# = 0 ]; then echo '*nat'; echo ':VIPKIT-SERVICES - [0:0]'; exit 1; fi")
	s.Apply(t, sampleSnapshot())
	if n := s.Operations(t); n != 0 {
		t.Errorf("operations of a restart: got %d, want 0", n)
	}
	want := []string{"iptables-nft-save", "iptables-nft-save", "iptables-nft-save", "ip6tables-nft-save"}
	testenv.Same(t, want, startedSince(t, file), "programs started")
}

// In the legacy flavour, reading tables does not make missing ones.
func TestTablesAreNotMade(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{Flavour: Legacy})
	testenv.NoError(t, s.Backend.Cleanup(t.Context()))
	if left := s.run(t, "", "iptables-save") + s.run(t, "", "ip6tables-save"); left != "" {
		t.Errorf("tables after Cleanup without rules: got\n%s\nwant none", left)
	}
	s.Apply(t, sampleSnapshot())
	if got := strings.Split(s.run(t, "", "iptables-save"), "\n"); !slices.Contains(got, "*nat") || slices.Contains(got, "*mangle") {
		t.Errorf("tables after Apply: got\n%s\nwant nat, and not mangle", strings.Join(got, "\n"))
	}
}

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
					testenv.Same(t, want, s.dump(t), "%s was renamed: rules after the repair", chain[1])
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
