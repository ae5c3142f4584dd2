package iptables

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/proxy"
)

// nft loads a ruleset, or shows what there is.
func (s *stage) nft(t testing.TB, ruleset string) string {
	t.Helper()
	args := []string{"-f", "-"}
	if ruleset == "" {
		args = []string{"list", "ruleset"}
	}
	out, err := netnstest.Run(t, s.NS, ruleset, netnstest.NFT(t), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Rules of others in the kernel's own chains stay even where they lead to chains of
// ours, or have comments that look like rules of ours.
func TestForeignJumpsAreLeftAlone(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Apply(t, sampleWorld())
		clean := s.dump(t)
		for _, rule := range [][]string{
			{"-s", "192.0.2.0/24", "-j", "VIPKIT-SERVICES"},
			{"-m", "comment", "--comment", "mine", "-j", "VIPKIT-SERVICES"},
			{"-m", "comment", "--comment", "x\" -j VIPKIT-SERVICES", "-j", "ACCEPT"},
			{"-m", "comment", "--comment", "x\n-A PREROUTING -j VIPKIT-SERVICES\n-A VIPKIT-SERVICES -j DROP", "-j", "ACCEPT"},
			{"-i", "-j", "-j", "VIPKIT-SERVICES"},
		} {
			s.run(t, "", "iptables", append([]string{"-w", "5", "-t", "nat", "-A", "PREROUTING"}, rule...)...)
		}
		before := withoutCounters(s.run(t, "", "iptables-save"))
		s.Restart(t)
		s.Apply(t, sampleWorld())
		if n := s.Operations(t); n != 0 {
			t.Errorf("beside rules of others, a restart took %d operations, want 0", n)
		}
		if diff := cmp.Diff(before, withoutCounters(s.run(t, "", "iptables-save"))); diff != "" {
			t.Errorf("what others have (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(clean, s.dump(t)); diff != "" {
			t.Errorf("what is found of this identity (-without others +with):\n%s", diff)
		}
		if err := s.Backend.Cleanup(t.Context()); err == nil || !strings.Contains(err.Error(), "VIPKIT-SERVICES") {
			t.Errorf("Cleanup: got error %v, want one that names the chain to which others lead", err)
		}
		left := s.run(t, "", "iptables-save", "-t", "nat")
		if n := strings.Count(left, "-A PREROUTING "); n != 6 { // with the one within a comment
			t.Errorf("after Cleanup, %d rules of others are there, want 6:\n%s", n, left)
		}
	})
}

// Rules within chains of ours that cannot be written as iptables prints them go with
// the chain.
func TestOddRulesInOwnChains(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Apply(t, sampleWorld())
		want := s.dump(t)
		s.run(t, "", "iptables", "-w", "5", "-t", "nat", "-A", "VIPKIT-SERVICES", "-m", "comment", "--comment", "x\nCOMMIT\n*raw", "-j", "ACCEPT")
		if s.Options.Flavour == NFT {
			s.nft(t, "add rule ip nat VIPKIT-SERVICES ip daddr vmap { 192.0.2.1 : drop }")
		}
		if s.dump(t) == want {
			t.Error("nothing has changed, so the test shows nothing")
		}
		s.Applied = proxy.Snapshot{}
		s.Apply(t, sampleWorld())
		if diff := cmp.Diff(want, s.dump(t)); diff != "" {
			t.Errorf("after the repair (-want +got):\n%s", diff)
		}
	})
}

// oddOutput is a table with a rule that iptables cannot print.
func oddOutput(table, hook string) string {
	return "table " + table + " {\n\tchain OUTPUT {\n\t\t" + hook + "; policy accept;\n\t\tnumgen random mod 2 0 counter\n\t}\n}\n"
}

// Tables that only the program nft can print, and that are not used here, are no matter.
func TestTablesOfNFT(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT})
	in := oddOutput
	const early = "type route hook output priority -150"
	s.nft(t, in("ip mangle", early)+in("ip6 mangle", early)+in("inet filter", early))
	if printed := s.run(t, "", "iptables-save"); !strings.Contains(printed, "is incompatible") {
		t.Errorf("iptables can print the table, so the test shows nothing:\n%s", printed)
	}
	before := s.nft(t, "")
	s.Apply(t, sampleWorld())
	s.Restart(t)
	s.Apply(t, sampleWorld())
	if n := s.Operations(t); n != 0 {
		t.Errorf("a restart took %d operations, want 0", n)
	}
	if err := s.Backend.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	if after := s.nft(t, ""); !strings.HasPrefix(after, before) {
		t.Errorf("the tables of others were\n%s\nand are\n%s", before, after)
	}
}

// Rules of others that iptables cannot print, in the tables and chains that are used here,
// keep nothing from being programmed, changed, repaired and removed.
func TestUnprintableTable(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT})
	s.nft(t, oddOutput("ip nat", "type nat hook output priority -100"))
	worlds := variants()
	for step, w := range append(worlds, worlds[0]) {
		fresh := newStage(t, s.Options)
		fresh.Apply(t, w)
		want := fresh.truth(t)
		for _, how := range []string{"a change", "a look at everything", "a restart", "a repair"} {
			switch how {
			case "a look at everything":
				s.Applied = proxy.Snapshot{}
			case "a restart":
				s.Restart(t)
			case "a repair":
				s.nft(t, "flush chain ip nat VIPKIT-SERVICES\nflush chain ip nat PREROUTING\ninsert rule ip filter VIPKIT-SERVICES ct mark 5\n")
				s.Applied = proxy.Snapshot{}
			}
			s.Apply(t, w)
			if diff := cmp.Diff(want, s.truth(t)); diff != "" {
				t.Fatalf("%s in step %d: what there is (-fresh +got):\n%s", how, step, diff)
			}
		}
	}
	if err := s.Backend.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	if left := s.nft(t, ""); strings.Contains(left, "VIPKIT") || strings.Count(left, "numgen random mod 2 0 counter") != 1 {
		t.Errorf("after Cleanup there is\n%s", left)
	}
}

// An iptables-save that fails at tables of others is asked for those of ours alone.
func TestSaveThatFailsAtOthers(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT})
	s.Apply(t, sampleWorld())
	file := standInFor(t, s, "save", "if [ $# = 0 ]; then echo '*nat'; echo ':VIPKIT-SERVICES - [0:0]'; exit 1; fi")
	s.Apply(t, sampleWorld())
	if n := s.Operations(t); n != 0 {
		t.Errorf("a restart took %d operations, want 0", n)
	}
	want := []string{"iptables-nft-save", "iptables-nft-save", "iptables-nft-save", "ip6tables-nft-save"}
	if diff := cmp.Diff(want, startedSince(t, file)); diff != "" {
		t.Errorf("programs started (-want +got):\n%s", diff)
	}
}

// Looking does not make the legacy kernel's tables.
func TestTablesAreNotMade(t *testing.T) {
	s := newStage(t, Options{Flavour: Legacy})
	if err := s.Backend.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := s.run(t, "", "iptables-save") + s.run(t, "", "ip6tables-save"); left != "" {
		t.Errorf("after Cleanup where there was nothing, there is:\n%s", left)
	}
	s.Apply(t, sampleWorld())
	if got := s.run(t, "", "iptables-save"); !slices.Contains(strings.Split(got, "\n"), "*nat") {
		t.Errorf("after Apply, there is:\n%s", got)
	}
}
