package backendtest

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const foreignTable = `table ip somebody-elses {
	map services {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 192.0.2.1 . tcp . 80 : drop }
	}

	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		ip daddr . meta l4proto . th dport vmap @services
	}
}
`

// foreignRules are foreign rules of iptables, in chains of their own and in the built-in
// ones.
const foreignRules = `*filter
:SOMEBODY-ELSES - [0:0]
-A SOMEBODY-ELSES -p tcp -m tcp --dport 7 -j DROP
-A FORWARD -j SOMEBODY-ELSES
-A INPUT -p udp -m udp --dport 7 -j DROP
COMMIT
*nat
:SOMEBODY-ELSES - [0:0]
-A SOMEBODY-ELSES -p tcp -m tcp --dport 9 -j RETURN
-A PREROUTING -j SOMEBODY-ELSES
-A POSTROUTING -p udp -m udp --dport 9 -j ACCEPT
COMMIT
`

// lawCleanup: Cleanup removes all objects of the backend, and no foreign ones; neither does
// Apply change foreign objects.
func lawCleanup(t *testing.T, s *stage) {
	s.addForeign(t)
	before, theirs, settings := s.everything(t), s.foreign(t), s.settings(t)
	h := s.newHistory(testenv.Random(t), 10)
	for range 5 {
		s.apply(t, h.next(t))
		if diff := cmp.Diff(theirs, s.foreign(t)); diff != "" {
			t.Fatalf("foreign objects (-before +after):\n%s", diff)
		}
	}
	if s.dump(t) == "" {
		t.Fatal("dump after Apply: got an empty one")
	}
	s.restart(t)
	for range 2 { // the second time, there is nothing to do
		if err := s.cleanUp(t); err != nil {
			t.Fatalf("Cleanup: %v", err)
		}
		if d := s.dump(t); d != "" {
			t.Fatalf("after Cleanup: got dump, want an empty one:\n%s", d)
		}
	}
	if diff := cmp.Diff(before, s.everything(t)); diff != "" {
		t.Fatalf("after Cleanup: configuration of the node (-before +after):\n%s", diff)
	}
	s.wantSettings(t, settings)
}

// everything returns the rules, routes, addresses, devices, virtual servers and sets of the
// node.
func (s *stage) everything(t *testing.T) []string {
	t.Helper()
	var all []string
	tables, err := findNFT(t, s.node()).list()
	testenv.NoError(t, err)
	// The program iptables makes tables as it needs them, and leaves them.
	iptables := regexp.MustCompile(`^ip6? (filter|nat|mangle|raw) `)
	for block := range strings.SplitSeq("\n"+tables, "\ntable ") {
		if block = strings.TrimSpace(block); block != "" && !iptables.MatchString(block) {
			all = append(all, block)
		}
	}
	for _, program := range s.iptables() {
		for line := range strings.Lines(s.runAtNode(t, "", program+"-save")) {
			if strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, ":") && strings.Contains(line, " - ") {
				all = append(all, program+" "+line)
			}
		}
	}
	return slices.Concat(all, s.routing(t), s.objects(t))
}

// foreign returns the objects of addForeign, as listed among all others.
func (s *stage) foreign(t *testing.T) string {
	t.Helper()
	isOther := func(object string) bool {
		_, rule, _ := strings.Cut(object, " -A ")
		isNamed := func(name string) bool { return strings.Contains(object, name) }
		return !slices.ContainsFunc([]string{"somebody-elses", "SOMEBODY-ELSES", foreignLink, foreignServer}, isNamed) &&
			(rule == "" || !strings.Contains(foreignRules, "-A "+rule))
	}
	return strings.Join(slices.DeleteFunc(s.everything(t), isOther), "\n")
}

// routing returns the routing rules, routes and addresses of the node.
func (s *stage) routing(t *testing.T) []string {
	t.Helper()
	rules, err := s.node().Netlink().RuleList(netlink.FAMILY_ALL)
	testenv.NoError(t, err)
	addresses, err := s.node().Netlink().AddrList(nil, netlink.FAMILY_ALL)
	testenv.NoError(t, err)
	var all []string
	for _, r := range rules {
		all = append(all, r.String())
	}
	for _, r := range s.routes(t) {
		all = append(all, r.String())
	}
	for _, a := range addresses {
		all = append(all, a.String())
	}
	slices.Sort(all)
	return all
}

// iptables returns the names of the installed flavours of iptables.
func (b *testbed) iptables() (found []string) {
	for _, name := range []string{"iptables-legacy", "iptables-nft"} {
		if _, err := exec.LookPath(name + "-save"); err == nil {
			found = append(found, name)
		}
	}
	return found
}

// canRun reports whether a program exists and succeeds on the node.
func (b *testbed) canRun(t testing.TB, name string, args ...string) bool {
	t.Helper()
	return b.node().Do(exec.CommandContext(t.Context(), name, args...).Run) == nil
}

// runAtNode runs a program on the node, with its input.
func (b *testbed) runAtNode(t testing.TB, input, name string, args ...string) string {
	t.Helper()
	out, err := netnstest.Run(t, b.node(), input, name, args...)
	testenv.NoError(t, err)
	return out
}
