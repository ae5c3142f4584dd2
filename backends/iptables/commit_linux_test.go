package iptables

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// holds compares the rules with those of a first load in another stage.
func (s *stage) holds(t *testing.T, want proxy.Snapshot, when string) {
	t.Helper()
	fresh := newStage(t, s.Options)
	fresh.Apply(t, want)
	if diff := cmp.Diff(fresh.dump(t), s.dump(t)); diff != "" {
		t.Errorf("%s: rules (-first load +got):\n%s", when, diff)
	}
}

// Removing many services at once keeps the others, in a change and in a full apply.
func TestManyServicesRemoved(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		NeedLargeTransactions(t, s.Options.Flavour)
		const services = xtables.ManyRemovals + 40
		all := newPorts(v1.IPv4Protocol, services, 1)
		for _, step := range []struct {
			services int
			full     bool
		}{{services, false}, {services - xtables.ManyRemovals - 1, false}, {services, false}, {20, true}, {45, false}, {20, false}} {
			want := proxy.NewSnapshot(stagetest.Node(), all[:step.services]...)
			if step.full {
				s.Applied = proxy.Snapshot{}
			}
			s.Apply(t, want)
			s.holds(t, want, "with fewer services")
		}
	})
}

// Many services are removed also if foreign rules keep the backend from reading the rules.
func TestManyServicesRemovedUnread(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{Flavour: NFT, Families: []v1.IPFamily{v1.IPv4Protocol}})
	all := newPorts(v1.IPv4Protocol, xtables.ManyRemovals+2, 1)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
	const foreign = "flush chain ip filter OUTPUT\ndelete chain ip filter OUTPUT\n" +
		"add chain ip filter OUTPUT { type filter hook output priority 7; }\nadd rule ip filter OUTPUT counter\n"
	if _, err := netnstest.Run(t, s.NS, foreign, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, s.Applied); err == nil || !strings.Contains(err.Error(), "it has rules of other programs") {
		t.Fatalf("a full apply: got error %v, want one about rules of other programs", err)
	}
	s = newStage(t, s.Options)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
	if _, err := netnstest.Run(t, s.NS, foreign, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all[xtables.ManyRemovals+1]))
	rules := s.run(t, "", "iptables-save", "-t", "nat")
	if strings.Contains(rules, all[0].Name.Name+" cluster IP") || !strings.Contains(rules, all[xtables.ManyRemovals+1].Name.Name+" cluster IP") {
		t.Errorf("rules: got\n%s\nwant those of the last service, and not those of the first one", rules)
	}
}

// A single chain that an earlier process left is removed.
func TestLoneLeftover(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.run(t, "*nat\n:VIPKIT-SVC-AAAAAAAAAAAAAAAA - [0:0]\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		s.Apply(t, sampleSnapshot())
		s.holds(t, sampleSnapshot(), "after a leftover")
	})
}

// Each rule and chain that is written or removed counts once.
func TestOperationsAreCounted(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		var want uint64
		for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
			text, err := Rules(s.Options, family, sampleSnapshot())
			testenv.NoError(t, err)
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, ":") || strings.HasPrefix(line, "-") {
					want++
				}
			}
		}
		s.Apply(t, sampleSnapshot())
		if got := s.Operations(t); got != want {
			t.Errorf("a first load: got %d operations, want %d", got, want)
		}
		before, port := s.Operations(t), newPort(v1.IPv4Protocol, 9, 4)
		s.Apply(t, s.Applied.Revert(proxy.NewSnapshot(stagetest.Node(), port), port.Name))
		// These are a chain with four endpoints and a mark, the jump to it, and the
		// refusal of other ports.
		if got := s.Operations(t) - before; got != 1+4+1+1+1 {
			t.Errorf("a service added: got %d operations, want 8", got)
		}
	})
}

// failing installs a stub of iptables-restore that runs a script while the file $flag exists.
// It returns the path of that file, and a file with a line for each program that was started.
func failing(t *testing.T, s *stage, script string) (flag, started string) {
	t.Helper()
	flag = filepath.Join(t.TempDir(), "fail")
	return flag, stubRestore(t, s, "flag="+flag+"; if [ -e $flag ]; then "+script+"; fi")
}

func setFlag(t *testing.T, flag string) {
	t.Helper()
	testenv.NoError(t, os.WriteFile(flag, nil, 0o600))
}

// If a program fails without output, the backend reports that the dataplane is lost: some of
// several tables may have been written.
func TestSilentFailure(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		flag, _ := failing(t, s, "sed '/^COMMIT/q' | $real \"$@\"; rm $flag; exit 1")
		full, empty, other := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 0, 0), newPort(v1.IPv4Protocol, 1, 1)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), full, other))
		setFlag(t, flag)
		next := proxy.NewSnapshot(stagetest.Node(), empty, other)
		if err := s.Backend.Apply(t.Context(), s.Applied, next); !errors.Is(err, proxy.ErrDataplaneLost) || errors.As(err, new(proxy.PortErrors)) {
			t.Errorf("Apply: got error %v, want %v and no PortErrors", err, proxy.ErrDataplaneLost)
		}
		s.Applied = proxy.Snapshot{}
		s.Apply(t, next)
		s.holds(t, next, "after a failure")
	})
}

// If a part of a change was made, and the rest is refused, the backend reports that the
// dataplane is lost.
func TestPartOfAChange(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		// The first try stops at a chain to which a foreign rule jumps, the second is refused.
		flag, _ := failing(t, s, `if [ -e $flag.once ]; then echo 'iptables-restore: line 1 failed' >&2; rm $flag*; exit 1; fi; >$flag.once`)
		all := newPorts(v1.IPv4Protocol, 3, 2)
		used := newNames("vipkit").of(prefixCluster, all[2].Name, 0)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
		s.run(t, "*nat\n:OTHER - [0:0]\n-A OTHER -j "+used+"\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		setFlag(t, flag)
		next := proxy.NewSnapshot(stagetest.Node(), all[:2]...)
		if err := s.Backend.Apply(t.Context(), s.Applied, next); !errors.Is(err, proxy.ErrDataplaneLost) || errors.As(err, new(proxy.PortErrors)) {
			t.Errorf("Apply: got error %v, want %v and no PortErrors", err, proxy.ErrDataplaneLost)
		}
		if _, err := os.Stat(flag); err == nil {
			t.Error("second try: got none, want one")
		}
	})
}

// After an error, the number of own commits is unknown, so a later commit of another program
// must not be mistaken for one of these.
func TestDriftAfterAnError(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT})
	flag, _ := failing(t, s, "echo 'iptables-restore: Cannot allocate memory' >&2; exit 1")
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), newPort(v1.IPv4Protocol, 0, 2)))
	setFlag(t, flag)
	next := proxy.NewSnapshot(stagetest.Node(), newPort(v1.IPv4Protocol, 0, 3)) // one table, so one commit
	if err := s.Backend.Apply(t.Context(), s.Applied, next); err == nil {
		t.Error("Apply: got no error, want one")
	}
	testenv.NoError(t, os.Remove(flag))
	s.run(t, "*filter\n:OTHER - [0:0]\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
	if checker, ok := s.Backend.(proxy.DriftChecker); !ok || !checker.Drifted(t.Context()) {
		t.Error("after an error and a foreign change: drifted: got false, want true")
	}
}
