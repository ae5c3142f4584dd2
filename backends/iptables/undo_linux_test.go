package iptables

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// refuseSecond is for a stand-in that lets only the first table of two through, and
// says where it stopped.
const refuseSecond = `script=$(cat); echo "$script" | sed '/^COMMIT/q' | $real "$@" || exit
	line=$(echo "$script" | grep -n ^COMMIT | sed -n '2s/:.*//p')
	if [ -n "$line" ]; then AFTER; echo "iptables-restore: line $line failed" >&2; exit 1; fi
	exit 0`

// What was done before a refusal is undone, and nothing is done where there is nothing
// to undo.
func TestUndo(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		for script, programs := range map[string]int{
			strings.Replace(refuseSecond, "AFTER", "rm $flag", 1):          2,
			"rm $flag; echo 'iptables-restore: line 1 failed' >&2; exit 1": 1,
		} {
			s.Restart(t)
			flag, started := failing(t, s, script)
			full, empty, other := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 0, 0), newPort(v1.IPv4Protocol, 1, 1)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), full, other))
			before := s.dump(t)
			raise(t, flag)
			startedSince(t, started)
			next := proxy.NewSnapshot(stagetest.Node(), empty, other)
			err := s.Backend.Apply(t.Context(), s.Applied, next)
			if failed, ok := errors.AsType[proxy.PortErrors](err); !ok || failed[full.Name] == nil {
				t.Fatalf("got error %v, want one of port %s", err, full.Name)
			}
			if got := startedSince(t, started); len(got) != programs {
				t.Errorf("programs were started: got %q, want %d", got, programs)
			}
			if diff := cmp.Diff(before, s.dump(t)); diff != "" {
				t.Errorf("after a refusal (-before +after):\n%s", diff)
			}
			s.Apply(t, next)
		}
	})
}

// Where it cannot be undone, as rules were replaced or as that is refused too, nobody
// is left in the belief of knowing what is there.
func TestNoUndo(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
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
			raise(t, flag)
			next := proxy.NewSnapshot(stagetest.Node(), c.to...)
			if err := s.Backend.Apply(t.Context(), s.Applied, next); !errors.Is(err, proxy.ErrDataplaneLost) || errors.As(err, new(proxy.PortErrors)) {
				t.Errorf("%s: got error %v, want %v and nobody blamed", c.what, err, proxy.ErrDataplaneLost)
			}
			s.Applied = proxy.Snapshot{}
			s.Apply(t, next)
			s.holds(t, next, "once it can be done, where "+c.what)
		}
	})
}
