package iptables

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/testenv"
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

// If a change is refused, whatever part of it was made, the backend reports that the dataplane is
// lost. The next Apply then makes the rules as they should be.
func TestRefusedChange(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		full, empty, other := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 0, 0), newPort(v1.IPv4Protocol, 1, 1)
		for _, script := range []string{
			"rm $flag; echo 'iptables-restore: line 1 failed' >&2; exit 1",
			"rm $flag; sed '/^COMMIT/q' | $real \"$@\"; exit 1",
			"rm $flag; sed '/^COMMIT/q' | $real \"$@\"; echo 'iptables-restore: Cannot allocate memory' >&2; exit 4",
			"rm $flag; sed '/^COMMIT/q' | $real \"$@\"; echo 'Another app is currently holding the xtables lock' >&2; exit 4",
		} {
			for _, to := range [][]*proxy.ServicePort{{empty, other}, {empty, moved(other, 1000)}} {
				s.Restart(t)
				flag, _ := failing(t, s, script)
				s.Apply(t, proxy.NewSnapshot(stagetest.Node(), full, other))
				setFlag(t, flag)
				next := proxy.NewSnapshot(stagetest.Node(), to...)
				if err := s.Backend.Apply(t.Context(), s.Applied, next); !errors.Is(err, proxy.ErrDataplaneLost) || errors.As(err, new(proxy.PortErrors)) {
					t.Errorf("%q: got error %v, want %v and no PortErrors", script, err, proxy.ErrDataplaneLost)
				}
				s.Applied = proxy.Snapshot{}
				s.Apply(t, next)
				s.holds(t, next, "after "+script)
			}
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
	if !s.Backend.Abilities().Drifted(t.Context()) {
		t.Error("after an error and a foreign change: drifted: got false, want true")
	}
}

// A long first load is committed in pieces. If the last one is refused, the rules are as in one commit
// after the next Apply.
func TestFirstLoadInPieces(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT, Families: []v1.IPFamily{v1.IPv4Protocol}})
	commits := filepath.Join(t.TempDir(), "commits")
	flag, _ := failing(t, s, `script=$(cat); n=$(echo "$script" | grep -c ^COMMIT)
		if [ ! -e `+commits+` ]; then
			echo $n >`+commits+`; line=$(echo "$script" | grep -n ^COMMIT | tail -1 | sed 's/:.*//')
			echo "$script" | awk -v n=$n '{print} /^COMMIT/ && ++i == n-1 {exit}' | $real "$@" || exit
			echo "iptables-restore: line $line failed" >&2; exit 1
		fi
		exit 1`)
	setFlag(t, flag)
	all := proxy.NewSnapshot(stagetest.Node(), newPorts(v1.IPv4Protocol, 300, 10)...)
	if err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, all); err == nil {
		t.Fatal("Apply: got no error, want one")
	}
	text, err := os.ReadFile(commits)
	if n, bad := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || bad != nil || n < 4 {
		t.Errorf("commits of the first load: got %q, error %v, want 4 or more", text, err)
	}
	testenv.NoError(t, os.Remove(flag))
	s.Apply(t, all)
	s.holds(t, all, "after a refused first load")
}
