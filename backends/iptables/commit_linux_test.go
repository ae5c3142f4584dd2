package iptables

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
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

// failing installs a stub of iptables-restore that runs a script while the file $flag exists.
// It returns the path of that file.
func failing(t *testing.T, s *stage, script string) (flag string) {
	t.Helper()
	flag = filepath.Join(t.TempDir(), "fail")
	stubRestore(t, s, "flag="+flag+"; if [ -e $flag ]; then "+script+"; fi")
	return flag
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
				flag := failing(t, s, script)
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
