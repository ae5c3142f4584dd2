package iptables

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// If the kernel accepts each service port, but not all of them together, the existing rules stay in
// effect: none that rejects packets goes, even in a chain that is not as the backend wrote it.
func TestShortageOfAll(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		// The kernel refuses more than 40 rules of table nat in one commit, after the tables before it.
		const tooMany = `script=$(cat); line=$(printf '%s\n' "$script" | awk '
			/^\*/ {nat = /nat/; begin = NR; n = 0} nat && /^-[AI]/ {n++} /^COMMIT/ && n > 40 {print begin; exit}')
			if [ -n "$line" ]; then
				printf '%s\n' "$script" | head -n $((line - 1)) | $real "$@" || exit
				echo "iptables-restore: line $line failed" >&2; exit 1
			fi
			printf '%s\n' "$script" | exec $real "$@"; exit`
		flag, _ := failing(t, s, tooMany)
		rejected := newPorts(v1.IPv4Protocol, 3, 0)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), rejected...))
		rule := "-A VIPKIT-SERVICES -d " + rejected[0].Frontends[0].Addr.Addr().String() + "/32"
		saved := strings.Split(s.run(t, "", "iptables-save", "-t", "filter"), "\n")
		at := slices.IndexFunc(saved, func(line string) bool { return strings.HasPrefix(line, rule) })
		if at < 0 {
			t.Fatalf("rules of table filter: got none that begins with %q, want one, in\n%s", rule, strings.Join(saved, "\n"))
		}
		s.run(t, "*filter\n"+saved[at]+"\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5") // a second time
		setFlag(t, flag)
		next := proxy.NewSnapshot(stagetest.Node(), newPorts(v1.IPv4Protocol, 30, 2)...)
		err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, next)
		if !errors.Is(err, backends.ErrUnavailable) || errors.As(err, new(proxy.PortErrors)) || !strings.Contains(err.Error(), "existing objects stay in effect") {
			t.Errorf("Apply: got error %v, want %v, no PortErrors, and that the existing objects stay", err, backends.ErrUnavailable)
		}
		if now := s.run(t, "", "iptables-save", "-t", "filter"); !strings.Contains(now, saved[at]) {
			t.Errorf("rules of table filter: got\n%s\nwant %q to stay", now, saved[at])
		}
		testenv.NoError(t, os.Remove(flag))
		s.Applied = proxy.Snapshot{}
		s.Apply(t, next)
		s.holds(t, next, "after the shortage")
	})
}
