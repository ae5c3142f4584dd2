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
	"github.com/vipkit/vipkit/proxy"
)

// holds compares the rules with those of a stage that nothing has befallen.
func (s *stage) holds(t *testing.T, want proxy.Snapshot, when string) {
	t.Helper()
	fresh := newStage(t, s.Options)
	fresh.Apply(t, want)
	if diff := cmp.Diff(fresh.dump(t), s.dump(t)); diff != "" {
		t.Errorf("%s: the rules (-fresh +got):\n%s", when, diff)
	}
}

// Many services that go at once take none with them, whatever was there before a look
// at everything.
func TestManyServicesGo(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		all := world(v1.IPv4Protocol, 60, 1)
		for _, step := range []struct {
			services int
			anew     bool
		}{{60, false}, {60 - manyRemovals - 1, false}, {60, false}, {20, true}, {45, false}, {20, false}} {
			want := proxy.NewSnapshot(stagetest.Node(), all[:step.services]...)
			if step.anew {
				s.Applied = proxy.Snapshot{}
			}
			s.Apply(t, want)
			s.holds(t, want, "with fewer services")
		}
	})
}

// One chain that somebody has left behind goes.
func TestLoneLeftover(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.run(t, "*nat\n:VIPKIT-SVC-AAAAAAAAAAAAAAAA - [0:0]\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		s.Apply(t, sampleWorld())
		s.holds(t, sampleWorld(), "after a leftover")
	})
}

// Each rule and chain that is written or removed counts once.
func TestOperationsAreCounted(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		var want uint64
		for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
			text, err := Rules(s.Options, family, sampleWorld())
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, ":") || strings.HasPrefix(line, "-") {
					want++
				}
			}
		}
		s.Apply(t, sampleWorld())
		if got := s.Operations(t); got != want {
			t.Errorf("a first load: got %d operations, want %d", got, want)
		}
		before, port := s.Operations(t), newPort(v1.IPv4Protocol, 9, 4)
		s.Apply(t, s.Applied.Revert(proxy.NewSnapshot(stagetest.Node(), port), port.Name))
		// A chain with four endpoints and a mark; the jump to it; the refusal of other ports.
		if got := s.Operations(t) - before; got != 1+4+1+1+1 {
			t.Errorf("a service more: got %d operations, want 8", got)
		}
	})
}

// failing puts a stand-in in the place of iptables-restore that does as a script says
// while the file $flag is there. It gives that, and a file with a line for each program
// that was started.
func failing(t *testing.T, s *stage, script string) (flag, started string) {
	t.Helper()
	flag = filepath.Join(t.TempDir(), "fail")
	return flag, standIn(t, s, "flag="+flag+"; if [ -e $flag ]; then "+script+"; fi")
}

func raise(t *testing.T, flag string) {
	t.Helper()
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Where a program fails without a word, nobody knows how much of several tables it has
// written.
func TestSilentFailure(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		flag, _ := failing(t, s, "sed '/^COMMIT/q' | $real \"$@\"; rm $flag; exit 1")
		full, empty, other := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 0, 0), newPort(v1.IPv4Protocol, 1, 1)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), full, other))
		raise(t, flag)
		next := proxy.NewSnapshot(stagetest.Node(), empty, other)
		if err := s.Backend.Apply(t.Context(), s.Applied, next); !errors.Is(err, proxy.ErrDataplaneLost) || errors.As(err, new(proxy.PortErrors)) {
			t.Errorf("got error %v, want %v and nobody blamed", err, proxy.ErrDataplaneLost)
		}
		s.Applied = proxy.Snapshot{}
		s.Apply(t, next)
		s.holds(t, next, "after a failure")
	})
}

// A change of which a part was made, and the rest cannot be, leaves nobody in the
// belief of knowing what is there.
func TestPartOfAChange(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		// The first try stops at a chain to which others lead, the second is refused.
		flag, _ := failing(t, s, `if [ -e $flag.once ]; then echo 'iptables-restore: line 1 failed' >&2; rm $flag*; exit 1; fi; >$flag.once`)
		all := world(v1.IPv4Protocol, 3, 2)
		used := newNames("vipkit").of(prefixCluster, all[2].Name, 0)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
		s.run(t, "*nat\n:OTHER - [0:0]\n-A OTHER -j "+used+"\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		raise(t, flag)
		next := proxy.NewSnapshot(stagetest.Node(), all[:2]...)
		if err := s.Backend.Apply(t.Context(), s.Applied, next); !errors.Is(err, proxy.ErrDataplaneLost) || errors.As(err, new(proxy.PortErrors)) {
			t.Errorf("got error %v, want %v and nobody blamed", err, proxy.ErrDataplaneLost)
		}
		if _, err := os.Stat(flag); err == nil {
			t.Error("there was no second try, so the test shows nothing")
		}
	})
}

// After an error, nobody knows how often nf_tables was changed: what others do then is
// not to be taken for the rest of it.
func TestDriftAfterAnError(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT})
	flag, _ := failing(t, s, "echo 'iptables-restore: Cannot allocate memory' >&2; exit 1")
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), newPort(v1.IPv4Protocol, 0, 2)))
	raise(t, flag)
	next := proxy.NewSnapshot(stagetest.Node(), newPort(v1.IPv4Protocol, 0, 3)) // one table, so one commit
	if err := s.Backend.Apply(t.Context(), s.Applied, next); err == nil {
		t.Error("got no error, so the test shows nothing")
	}
	if err := os.Remove(flag); err != nil {
		t.Fatal(err)
	}
	s.run(t, "*filter\n:OTHER - [0:0]\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
	if checker, ok := s.Backend.(proxy.DriftChecker); !ok || !checker.Drifted(t.Context()) {
		t.Error("after an error and a change by others: drifted: got false, want true")
	}
}
