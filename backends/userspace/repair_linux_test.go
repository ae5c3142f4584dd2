package userspace_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// dump returns all objects that a backend finds of its own on the node, as text.
func (n network) dump(t *testing.T, c userspace.Capture) (out string) {
	t.Helper()
	if err := n.node().Do(func() (err error) {
		out, err = userspace.Dump(t.Context(), c)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// The backend notices any change of its tables by another program, and the next resync repairs
// it.
func TestDamageIsRepaired(t *testing.T) {
	t.Parallel()
	netnstest.NFT(t)
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		n := newNetwork(t)
		b := n.start(t, userspace.Options{Capture: capture})
		apply(t, b, snapshot(one))
		want := n.dump(t, capture)
		for name, script := range map[string]string{
			"the table is missing":         "delete table ip vipkit-userspace",
			"rules are missing":            "flush chain ip vipkit-userspace services",
			"a foreign rule":               "insert rule ip vipkit-userspace services accept",
			"a foreign rule with a set":    "add rule ip vipkit-userspace services ip saddr { 192.0.2.1, 192.0.2.7 } drop",
			"a foreign set":                "add set ip vipkit-userspace foreign { type ipv4_addr; }",
			"a foreign chain":              "add chain ip vipkit-userspace foreign; add rule ip vipkit-userspace foreign jump services",
			"a foreign base chain":         "add chain ip vipkit-userspace foreign { type filter hook prerouting priority -200; policy drop; }",
			"a foreign element":            "add element ip vipkit-userspace cluster-ips { 192.0.2.1 }",
			"a frontend that drops":        "delete element ip vipkit-userspace frontends { 10.96.0.1 . tcp . 80 }; add element ip vipkit-userspace frontends { 10.96.0.1 . tcp . 80 : drop }",
			"a frontend of another chain":  "delete element ip vipkit-userspace frontends { 10.96.0.1 . tcp . 80 }; add element ip vipkit-userspace frontends { 10.96.0.1 . tcp . 80 : goto all-drop }",
			"a list of no source ranges":   "add chain ip vipkit-userspace from-nowhere; add rule ip vipkit-userspace from-nowhere drop",
			"a restriction that drops all": "add chain ip vipkit-userspace from-nowhere; add rule ip vipkit-userspace from-nowhere drop; add element ip vipkit-userspace restricted { 10.96.0.1 . tcp . 80 : jump from-nowhere }",
			"a dormant table":              "add table ip vipkit-userspace { flags dormant; }",
			"a base chain that drops":      "add chain ip vipkit-userspace output { policy drop; }",
			"a base chain renamed":         "rename chain ip vipkit-userspace prerouting theirs",
			"chains that swapped names":    "rename chain ip vipkit-userspace all-drop theirs\nrename chain ip vipkit-userspace all-reject all-drop\nrename chain ip vipkit-userspace theirs all-reject",
			"a set of another kind":        "delete table ip vipkit-userspace; add table ip vipkit-userspace; add set ip vipkit-userspace cluster-ips { type inet_service; }",
			"a set of another kind, used":  "delete table ip vipkit-userspace; add table ip vipkit-userspace; add set ip vipkit-userspace restricted { type ipv4_addr; }; add chain ip vipkit-userspace services; add rule ip vipkit-userspace services ip daddr @restricted drop",
		} {
			t.Run(capture.String()+"/"+name, func(t *testing.T) {
				for line := range strings.Lines(script) {
					n.nft(t, line)
				}
				if !b.Abilities().Drifted(t.Context()) {
					t.Error("Drifted: got false, want true")
				}
				apply(t, b, snapshot(one))
				testenv.Same(t, want, n.dump(t, capture), "objects after the repair")
				if b.Abilities().Drifted(t.Context()) {
					t.Error("Drifted after the repair: got true, want false")
				}
				n.wantAnswer(t, one)
				// Further changes are no repairs.
				more := services(web(one), web(two))
				before := b.Abilities().Operations()
				for _, change := range [][2]proxy.Snapshot{{snapshot(one), more}, {more, snapshot(one)}} {
					testenv.NoError(t, b.Apply(t.Context(), change[0], change[1]))
				}
				if got := b.Abilities().Operations() - before; got != 4 {
					t.Errorf("operations to add and remove a Service: got %d, want 4, for its frontend and its ClusterIP", got)
				}
			})
		}
	}
}

// edited changes the table as nft lists it, one line at a time, loads it again, and checks that
// the next Apply repairs it. Edit returns the changed line, or "" for no change.
func edited(t *testing.T, edit func(line string) string, restored func(n network)) {
	t.Helper()
	netnstest.NFT(t)
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		n := newNetwork(t)
		b := n.start(t, userspace.Options{Capture: capture})
		apply(t, b, snapshot(one))
		want, lines := n.dump(t, capture), strings.SplitAfter(n.nft(t, "list table ip vipkit-userspace"), "\n")
		changes := 0
		for i, line := range lines {
			changed := edit(line)
			if changed == "" {
				continue
			}
			changes++
			n.nft(t, "delete table ip vipkit-userspace\n"+strings.Join(lines[:i], "")+changed+strings.Join(lines[i+1:], ""))
			apply(t, b, snapshot(one))
			testenv.Same(t, want, n.dump(t, capture), "%v: objects after the repair of %q", capture, changed)
			restored(n)
		}
		if changes < 3 {
			t.Errorf("%v: edited lines: got %d, want at least 3 in %q", capture, changes, lines)
		}
	}
}

// If a user lists the rules, changes one, and loads them again, the changed rule does not count
// as the backend's own.
func TestEditedRulesAreRepaired(t *testing.T) {
	t.Parallel()
	verdict := regexp.MustCompile(`\b(drop|reject|return|goto \S+|jump \S+)\n$`)
	edited(t, func(line string) string {
		if !strings.HasPrefix(line, "\t\t") || !verdict.MatchString(line) {
			return ""
		}
		return verdict.ReplaceAllString(line, "accept\n")
	}, func(n network) { n.wantAnswer(t, one) })
}

// The same holds for a set with an added limit, which all of its elements get.
func TestEditedSetsAreRepaired(t *testing.T) {
	t.Parallel()
	edited(t, func(line string) string {
		if !strings.HasPrefix(line, "\t\ttype ") && !strings.HasPrefix(line, "\t\ttypeof ") || strings.Contains(line, " hook ") {
			return ""
		}
		return line + "\t\tlimit rate 1/day burst 1 packets\n"
	}, func(n network) {
		if got := n.nft(t, "list table ip vipkit-userspace"); strings.Contains(got, "limit") {
			t.Errorf("after the repair: got a limit, want none:\n%s", got)
		}
		for range 3 {
			_, c := n.wantAnswer(t, one)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A backend removes the objects that an earlier process has left for a family that it does not
// serve, complete or in part, also if it must rebuild the tables.
func TestUnservedFamiliesAreRemoved(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		testUnservedFamilies(t, c, "")
		testUnservedFamilies(t, c, "add table ip vipkit-userspace { flags dormant; }") // the tables are rebuilt
	})
}

func testUnservedFamilies(t *testing.T, c userspace.Capture, damage string) {
	t.Helper()
	n := newNetwork(t)
	both := services(web(one), web(service6))
	before := n.start(t, userspace.Options{Capture: c})
	apply(t, before, both)
	if got := n.ipv6Objects(t); len(got) == 0 {
		t.Fatal("got no objects of IPv6, want some for a meaningful test")
	}
	testenv.NoError(t, before.Close())
	if c == userspace.TPROXY {
		testenv.NoError(t, n.node().Netlink().RouteDel(&n.routingOf(t, unix.AF_INET6).table[0]))
	}
	if damage != "" {
		n.nft(t, damage)
	}
	b := n.start(t, userspace.Options{Capture: c, Families: []v1.IPFamily{v1.IPv4Protocol}})
	apply(t, b, both)
	if got := n.ipv6Objects(t); len(got) != 0 {
		t.Errorf("objects of IPv6: got %v, want none", got)
	}
	n.wantAnswer(t, one)
	if b.Abilities().Drifted(t.Context()) {
		t.Error("Drifted: got true, want false")
	}
}

// ipv6Objects lists the IPv6 rules, routes and tables of a backend on the node.
func (n network) ipv6Objects(t *testing.T) (all []string) {
	t.Helper()
	r := n.routingOf(t, unix.AF_INET6)
	for i := range r.rules {
		all = append(all, r.rules[i].String())
	}
	for _, route := range append(r.table, r.listeners...) {
		all = append(all, route.String())
	}
	if out := n.nft(t, "list tables ip6"); out != "" {
		all = append(all, out)
	}
	return all
}

// If other programs commit to their own tables faster than the backend can read its tables, a
// resync still succeeds, and writes nothing.
func TestResyncAmongCommits(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	b := n.start(t, userspace.Options{})
	ports := []*proxy.ServicePort{}
	for i := range 6000 {
		ports = append(ports, stagetest.Port(v1.IPv4Protocol, i, 1))
	}
	world := proxy.NewSnapshot(stagetest.Node(), ports...)
	apply(t, b, world)
	before := b.Abilities().Operations()
	ctx, cancel := context.WithCancel(t.Context())
	commits, committing := 0, sync.WaitGroup{}
	committing.Go(func() {
		if err := n.node().Do(func() error { return commitRepeatedly(ctx, &commits) }); err != nil {
			t.Error(err)
		}
	})
	defer committing.Wait()
	defer cancel()
	for range 5 {
		apply(t, b, world)
	}
	testenv.Same(t, 0, b.Abilities().Operations()-before, "operations of resyncs")
	cancel()
	committing.Wait()
	if commits < 5 {
		t.Errorf("commits of the other program: got %d, want at least 5 for a meaningful test", commits)
	}
}

// commitRepeatedly commits some hundred times a second to another table, until ctx ends.
func commitRepeatedly(ctx context.Context, commits *int) error {
	c, err := nfnetlink.Open()
	if err != nil {
		return err
	}
	for ctx.Err() == nil && err == nil {
		var b nfnetlink.Batch
		b.DestroyTable(nfnetlink.Table{Family: nfnetlink.IPv4, Name: "other"})
		err = c.Commit(context.WithoutCancel(ctx), &b)
		*commits++
		time.Sleep(2 * time.Millisecond)
	}
	return errors.Join(err, c.Close())
}
