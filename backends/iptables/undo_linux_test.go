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
	"github.com/vipkit/vipkit/proxy"
)

// refuseSecond is the script of a stub that commits only the first of two tables, and then
// fails with the line at which it stopped.
const refuseSecond = `script=$(cat); echo "$script" | sed '/^COMMIT/q' | $real "$@" || exit
	line=$(echo "$script" | grep -n ^COMMIT | sed -n '2s/:.*//p')
	if [ -n "$line" ]; then AFTER; echo "iptables-restore: line $line failed" >&2; exit 1; fi
	exit 0`

// What was committed before a refusal is undone, and no program is started if there is nothing
// to undo.
func TestUndo(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		for script, programs := range map[string]int{
			strings.Replace(refuseSecond, "AFTER", "rm $flag", 1):          2,
			"rm $flag; echo 'iptables-restore: line 1 failed' >&2; exit 1": 1,
		} {
			s.Restart(t)
			flag, started := failing(t, s, script)
			full, empty, other := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 0, 0), newPort(v1.IPv4Protocol, 1, 1)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), full, other))
			before := s.dump(t)
			setFlag(t, flag)
			startedSince(t, started)
			next := proxy.NewSnapshot(stagetest.Node(), empty, other)
			err := s.Backend.Apply(t.Context(), s.Applied, next)
			if failed, ok := errors.AsType[proxy.PortErrors](err); !ok || failed[full.Name] == nil {
				t.Fatalf("Apply: got error %v, want one of port %s", err, full.Name)
			}
			if got := startedSince(t, started); len(got) != programs {
				t.Errorf("started programs: got %q, want %d", got, programs)
			}
			if diff := cmp.Diff(before, s.dump(t)); diff != "" {
				t.Errorf("rules after a refusal (-before +after):\n%s", diff)
			}
			s.Apply(t, next)
		}
	})
}

// If a part of a change cannot be undone, because rules were replaced or because undoing is
// refused too, the backend reports that the dataplane is lost.
func TestNoUndo(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		full, empty, other := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 0, 0), newPort(v1.IPv4Protocol, 1, 1)
		for _, c := range []struct {
			what, after string
			from, to    []*proxy.ServicePort
		}{
			{"rules were replaced", "rm $flag", []*proxy.ServicePort{empty, other}, []*proxy.ServicePort{full, moved(other, 1000)}},
			{"the undoing is refused", ">$flag.more", []*proxy.ServicePort{full, other}, []*proxy.ServicePort{empty, other}},
		} {
			s.Restart(t)
			flag, _ := failing(t, s, "if [ -e $flag.more ]; then rm $flag*; exit 1; fi; "+strings.Replace(refuseSecond, "AFTER", c.after, 1))
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), c.from...))
			setFlag(t, flag)
			next := proxy.NewSnapshot(stagetest.Node(), c.to...)
			if err := s.Backend.Apply(t.Context(), s.Applied, next); !errors.Is(err, proxy.ErrDataplaneLost) || errors.As(err, new(proxy.PortErrors)) {
				t.Errorf("%s: got error %v, want %v and no PortErrors", c.what, err, proxy.ErrDataplaneLost)
			}
			s.Applied = proxy.Snapshot{}
			s.Apply(t, next)
			s.holds(t, next, "without the fault, after "+c.what)
		}
	})
}

// A long first load is committed in pieces. If the last one is refused, so that packets reach none of
// them, they are removed again; without the fault the rules are as in one commit.
func TestFirstLoadInPieces(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT, Families: []v1.IPFamily{v1.IPv4Protocol}})
	commits := filepath.Join(t.TempDir(), "commits")
	flag, _ := failing(t, s, `script=$(cat); n=$(echo "$script" | grep -c ^COMMIT)
		if [ ! -e `+commits+` ]; then
			echo $n >`+commits+`; line=$(echo "$script" | grep -n ^COMMIT | tail -1 | sed 's/:.*//')
			echo "$script" | awk -v n=$n '{print} /^COMMIT/ && ++i == n-1 {exit}' | $real "$@" || exit
			echo "iptables-restore: line $line failed" >&2; exit 1
		fi
		echo "$script" | $real "$@" || exit; rm $flag; echo 'iptables-restore: short of memory: Cannot allocate memory' >&2; exit 1`)
	setFlag(t, flag)
	all := proxy.NewSnapshot(stagetest.Node(), newPorts(v1.IPv4Protocol, 300, 10)...)
	if err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, all); err == nil {
		t.Fatal("Apply: got no error, want one")
	}
	text, err := os.ReadFile(commits)
	if n, bad := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || bad != nil || n < 4 {
		t.Errorf("commits of the first load: got %q, error %v, want 4 or more", text, err)
	}
	if got := s.dump(t); got != "" {
		t.Errorf("rules after the pieces were undone: got\n%.2000s\nwant none", got)
	}
	s.Apply(t, all)
	s.holds(t, all, "after a refused first load")
}
