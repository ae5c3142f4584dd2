package iptables

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// The rules that are counted are those in the kernel, after each change and by a process that takes over, which
// writes none. A change of one service port writes the rules of its chain only.
func TestRulesAreCounted(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		all := newPorts(v1.IPv4Protocol, 20, 3)
		step := func(what string, least, most int, ports ...*proxy.ServicePort) {
			t.Helper()
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), ports...))
			s.wantRules(t, what, least, most)
		}
		step("first", 100, 1000, all[:15]...)
		step("one endpoint replaced", 1, 10, append([]*proxy.ServicePort{moved(all[0], 99)}, all[1:15]...)...)
		step("five ports more, one without endpoints", 20, 100, append([]*proxy.ServicePort{newPort(v1.IPv4Protocol, 0, 0)}, all[1:]...)...)
		step("most ports removed", 0, 0, all[15:]...)
		s.Restart(t)
		step("a process that takes over", 0, 0, all[15:]...)
		s.Restart(t)
		step("one that takes over other ones", 1, 100, all[3:18]...)
		step("nothing new", 0, 0, all[3:18]...)
		testenv.NoError(t, s.NS.Do(func() error { return s.Backend.Cleanup(t.Context()) }))
		s.wantRules(t, "Cleanup", 0, 0)
	})
}

// wantRules compares the numbers of rules with those in the kernel, and the number of those that were written
// last with bounds.
func (s *stage) wantRules(t *testing.T, what string, least, most int) {
	t.Helper()
	wrote, tables := 0, []string{}
	for _, n := range s.Backend.Abilities().CountRules() {
		wrote += n.Written
		tables = append(tables, fmt.Sprint(n.Family, n.Table))
		program := map[v1.IPFamily]string{v1.IPv4Protocol: "iptables-save", v1.IPv6Protocol: "ip6tables-save"}[n.Family]
		if inKernel := strings.Count("\n"+s.run(t, "", program, "-t", n.Table), "\n-A "); n.Existing != inKernel {
			t.Errorf("%s: %s rules of table %s: got %d, want %d, as in the kernel", what, n.Family, n.Table, n.Existing, inKernel)
		}
	}
	if len(tables) != 4 {
		t.Errorf("%s: got counts of %v, want two tables of two families", what, tables)
	}
	if wrote < least || wrote > most {
		t.Errorf("%s: got %d rules written, want %d to %d", what, wrote, least, most)
	}
}

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
		flag := failing(t, s, tooMany)
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

// The backend reports how many clients of an endpoint have session affinity. The test checks that
// the kernel remembers as many and no more.
func TestAffinityIsLimited(t *testing.T) {
	t.Parallel()
	for _, f := range flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			s := newStage(t, Options{Flavour: f})
			two, single := newPort(v1.IPv4Protocol, 1, 2), newPort(v1.IPv4Protocol, 2, 1)
			two.Affinity = affinity.Config{Timeout: time.Hour}
			single.Affinity = two.Affinity
			snapshot := proxy.NewSnapshot(stagetest.Node(), two, single)
			s.Apply(t, snapshot)
			check := s.Backend.Abilities().CheckLimits
			if limits := check(stagetest.Node(), single); len(limits) > 0 {
				t.Errorf("limits of one endpoint: got %v, want none", limits)
			}
			limits := check(stagetest.Node(), two)
			if len(limits) != 1 {
				t.Fatalf("limits of two endpoints: got %v, want one", limits)
			}
			count := s.remembers(t)
			want := fmt.Sprintf("Service %s: spec.sessionAffinity: the kernel remembers %d clients of an endpoint;", two.Name.NamespacedName, count)
			if text := limits[0].Error(); !strings.HasPrefix(text, want) || !strings.HasSuffix(text, "larger ip_list_tot") {
				t.Errorf("limit: got %q, want %q and a remedy", text, want)
			}
		})
	}
}

// remembers adds many clients of an endpoint to the kernel's list, and returns how many of
// them the list then has.
func (s *stage) remembers(t *testing.T) (count int) {
	t.Helper()
	netnstest.NeedRoot(t, "writes to /proc/net/xt_recent")
	requested := int(rememberedClients()) + 100
	err := s.NS.Do(func() error {
		lists, err := filepath.Glob("/proc/thread-self/net/xt_recent/*")
		if err != nil || len(lists) == 0 {
			return fmt.Errorf("lists of clients: got none, want one: %w", err)
		}
		for i := range requested {
			if err := os.WriteFile(lists[0], fmt.Appendf(nil, "+10.9.%d.%d\n", i>>8, i&255), 0); err != nil {
				return err
			}
		}
		text, err := os.ReadFile(lists[0])
		count = strings.Count(string(text), "src=")
		return err
	})
	testenv.NoError(t, err)
	if count == 0 || count == requested {
		t.Fatalf("clients that the kernel remembers: got %d of %d, want some and not all", count, requested)
	}
	return count
}
