package iptables

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
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
	counter, can := s.Backend.(proxy.RuleCounter)
	if !can {
		t.Fatal("the backend counts no rules")
	}
	wrote, tables := 0, []string{}
	for _, n := range counter.CountRules() {
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
