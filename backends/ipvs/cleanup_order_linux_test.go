//go:build ipvs

package ipvs

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Cleanup removes virtual servers before the rules that protect them, and nothing if it cannot list
// them: by the sets, another Cleanup finds those that somebody has edited.
func TestCleanupRemovesServersFirst(t *testing.T) {
	path := netnstest.OwnXtablesLock(t)
	s := newStage(t, Options{Flavour: Legacy, LockWait: time.Second})
	s.Apply(t, snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2), localPort(1)))
	s.restart(t)
	before := s.kernelHas(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Backend.Cleanup(ended); err == nil {
		t.Error("Cleanup with an ended context: got no error")
	}
	if diff := cmp.Diff(before, s.kernelHas(t)); diff != "" {
		t.Errorf("after a Cleanup that failed (-before +after):\n%s", diff)
	}
	held, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, held)
	testenv.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	if err := s.Backend.Cleanup(t.Context()); !errors.Is(err, xtables.ErrLocked) {
		t.Errorf("Cleanup while the lock is held: got error %v, want %v", err, xtables.ErrLocked)
	}
	if servers, rules := s.run(t, "ipvsadm -Sn"), s.run(t, "iptables-legacy-save"); servers != "" || !strings.Contains(rules, "VIPKIT-IPVS-INPUT") {
		t.Errorf("while the rules cannot be removed: got virtual servers %q and rules %q, want no servers, and the rules", servers, rules)
	}
	testenv.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_UN))
	if err := s.Backend.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
}

// kernelHas returns virtual servers, addresses of the device and entries of sets, as programs
// show them.
func (s *stage) kernelHas(t *testing.T) (lines []string) {
	t.Helper()
	lines = strings.Split(s.run(t, "ipvsadm -Sn"), "\n")
	lines = append(lines, strings.Split(s.run(t, "ip -o addr show dev vipkit-ipvs0"), "\n")...)
	for line := range strings.Lines(s.run(t, "ipset save")) {
		if strings.HasPrefix(line, "add ") {
			lines = append(lines, line)
		}
	}
	return slices.DeleteFunc(lines, func(l string) bool { return l == "" })
}
