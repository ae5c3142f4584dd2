package nftables

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// watched is a stage with a view of the kernel edge of its backend.
type watched struct {
	*stage
	kernel *kernel
}

func newWatched(t *testing.T, limit int) *watched {
	t.Helper()
	w := &watched{stage: newStage(t, Options{})}
	err := w.NS.Do(func() (err error) {
		w.kernel, err = newKernel(w.Options)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.kernel.limits.list = limit
	w.Backend = backends.New(w.kernel.book.render, w.kernel)
	t.Cleanup(func() {
		if err := w.kernel.conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *watched) drifted(t *testing.T, when string, want bool) {
	t.Helper()
	if got := w.kernel.Drifted(t.Context()); got != want {
		t.Errorf("%s: drifted: got %t, want %t", when, got, want)
	}
}

// Commits of our own are not taken for those of others, and those of others to
// tables of their own give no reason to look at all elements.
func TestDriftedHeedsOurTablesOnly(t *testing.T) {
	w := newWatched(t, listLimit)
	p := stickyPort(v1.IPv4Protocol, 0, 2)
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
	w.drifted(t, "after a first load", false)
	w.nft(t, "add table ip somebody-elses")
	w.drifted(t, "after somebody else's change", false)
	w.addClients(t, p, 4)
	w.drifted(t, "after somebody added clients", true) // packets do so without a commit
	w.repair(t, w.Applied)
	w.drifted(t, "after clients came", false)
	one := *p
	one.Cluster = p.Cluster[:1]
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &one))
	w.drifted(t, "after a change that made clients forget", false)
	w.nft(t, "add chain ip somebody-elses theirs")
	w.drifted(t, "after a change of our own and one of others", false)
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &one, stagetest.Port(v1.IPv4Protocol, 1, 20)))
	w.nft(t, "add chain ip somebody-elses more")
	w.drifted(t, "after new chains of our own, and others' changes", false)
}

// Whatever anybody changes in our tables is noticed at once, and repaired by the next
// look.
func TestDriftedNoticesOurTables(t *testing.T) {
	world := proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 2))
	for name, commands := range map[string][]string{
		"a rule more":               {"add rule ip vipkit services counter"},
		"no rules in a chain":       {"flush chain ip vipkit reject-service"},
		"a chain more":              {"add chain ip6 vipkit theirs"},
		"a base chain's drop":       {"add chain ip vipkit prerouting { policy drop; }"},
		"a set more":                {"add set ip vipkit theirs { type ipv4_addr; }"},
		"a table more":              {"add table ip vipkit_2"},
		"no table":                  {"delete table ip6 vipkit"},
		"nothing":                   {"flush ruleset"},
		"nothing, twice":            {"flush ruleset", "flush ruleset"},
		"a dormant table":           {"add table ip vipkit { flags dormant; }"},
		"an element less":           {"delete element ip vipkit services { 10.128.0.1 . tcp . 80 }"},
		"another element":           {"delete element ip vipkit hairpins { 10.0.0.1 . 10.0.0.1 }", "add element ip vipkit hairpins { 10.0.0.9 . 10.0.0.9 }"},
		"a service for all":         {"add element ip vipkit services { * : drop }"},
		"a ClusterIP for all":       {"add element ip vipkit cluster-ips { * }"},
		"a hairpin for all":         {"add element ip vipkit hairpins { * }"},
		"an endpoint for all":       {"add element ip vipkit endpoints { * : 10.0.0.9 . 99 }"},
		"a service at no address":   {"add element ip vipkit services { 0.0.0.0 . tcp . 80 : drop }"},
		"an endpoint at no address": {"add element ip vipkit endpoints { 0.0.0.0 . tcp . 80 . 0 : 10.0.0.9 . 99 }"},
		"a rule out of place":       {"flush chain ip vipkit output", "add rule ip vipkit output jump services"},
		"a chain renamed":           {"rename chain ip vipkit pick-4 pick-5"},
		"chains that swapped names": {
			"rename chain ip vipkit pick-4 pick-5", "rename chain ip vipkit masquerade-pick-4 pick-4", "rename chain ip vipkit pick-5 masquerade-pick-4",
		},
		"a base chain renamed":               {"rename chain ip vipkit output pick-16"},
		"a chain in use, under another name": {"flush chain ip vipkit pick-4", "rename chain ip vipkit pick-4 pick-8"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t, listLimit)
			w.Apply(t, world)
			w.drifted(t, "before", false)
			for _, c := range commands {
				w.nft(t, c)
			}
			w.drifted(t, "after it", true)
			w.drifted(t, "having asked", true)
			if err := w.kernel.WaitDrift(t.Context()); err != nil {
				t.Errorf("waiting for drift that is there: got error %v, want none", err)
			}
			w.repair(t, world)
			w.drifted(t, "after the repair", false)
			fresh := newStage(t, Options{})
			fresh.Apply(t, world)
			if diff := cmp.Diff(fresh.listing(t), strings.ReplaceAll(w.listing(t), "vipkit_2", "vipkit")); diff != "" {
				t.Errorf("after the repair, beside what a first Apply makes (-want +got):\n%s", diff)
			}
		})
	}
}

// Who lists a table, adds a limit to a set, which all of its elements get, and loads it
// again leaves nothing by which the set would pass for ours.
func TestEditedSetsAreRepaired(t *testing.T) {
	world := sampleWorld()
	fresh := newStage(t, Options{})
	fresh.Apply(t, world)
	want := fresh.listing(t)
	w := newWatched(t, listLimit)
	w.Apply(t, world)
	lines := strings.SplitAfter(w.nft(t, "list table ip vipkit"), "\n")
	edited := 0
	for i, line := range lines {
		if !strings.HasPrefix(line, "\tset ") && !strings.HasPrefix(line, "\tmap ") {
			continue
		}
		t.Run(strings.Trim(line, "\t {\n"), func(t *testing.T) {
			end := i + slices.Index(lines[i:], "\t}\n")
			for at := i; at < end; at++ {
				if strings.HasPrefix(lines[at], "\t\telements") {
					end = at
				}
			}
			edited++
			w.nft(t, "flush ruleset")
			w.load(t, strings.Join(lines[:end], "")+"\t\tlimit rate 1/day burst 1 packets\n"+strings.Join(lines[end:], ""))
			w.repair(t, world)
			if diff := cmp.Diff(want, strings.ReplaceAll(w.listing(t), "vipkit_2", "vipkit")); diff != "" {
				t.Errorf("after the repair, beside what a first Apply makes (-want +got):\n%s", diff)
			}
		})
	}
	if edited <= setCount {
		t.Errorf("%d sets could be edited, want more than %d", edited, setCount)
	}
}

// An element that stands for all clients, which would send them all to one endpoint, stays
// neither after a resync nor where that endpoint goes.
func TestNoEndpointForAllClients(t *testing.T) {
	p := stickyPort(v1.IPv4Protocol, 0, 3)
	two := *p
	two.Cluster = p.Cluster[:2]
	node := stagetest.Node()
	three := proxy.NewSnapshot(node, p)
	for name, step := range map[string]struct {
		endpoint string
		old, new proxy.Snapshot
	}{
		"a resync":                   {p.Cluster[2].Addr.Addr().String(), proxy.Snapshot{}, three},
		"a resync, another endpoint": {"10.0.77.77", proxy.Snapshot{}, three},
		"one endpoint less":          {p.Cluster[2].Addr.Addr().String(), three, proxy.NewSnapshot(node, &two)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t, listLimit)
			w.Apply(t, three)
			w.nft(t, "add element ip vipkit "+affinityMap(affinityID(p.Name), proxy.PoolCluster)+" { * : "+step.endpoint+" . 8080 }")
			w.Applied = step.old
			w.Apply(t, step.new)
			if got := w.listing(t); strings.Contains(got, "* :") {
				t.Errorf("all clients have an endpoint:\n%s", got)
			}
		})
	}
}

// A flush is noticed whenever it comes: after commits of our own of any kind and size,
// and between them.
func TestDriftedNoticesFlushAfterCommits(t *testing.T) {
	world := proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 2))
	for name, next := range map[string]proxy.Snapshot{
		"nothing":         world,
		"an endpoint":     proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 3)),
		"new chains":      proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 20)),
		"affinity":        proxy.NewSnapshot(stagetest.Node(), stickyPort(v1.IPv4Protocol, 0, 2)),
		"many Services":   proxy.NewSnapshot(stagetest.Node(), manyPorts(500)...),
		"a new table set": proxy.NewSnapshot(stagetest.Node(), manyPorts(3000)...),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t, listLimit)
			w.Apply(t, world)
			w.Apply(t, next)
			w.drifted(t, "after our own commits", false)
			w.nft(t, "flush ruleset")
			w.drifted(t, "after a flush", true)
			w.repair(t, next)
			w.drifted(t, "after the repair", false)
		})
	}
}

// Clients that expire before they can be removed leave no commit behind that
// would hide one of others.
func TestDriftedAfterNothingWasRemoved(t *testing.T) {
	w := newWatched(t, listLimit)
	p := stickyPort(v1.IPv4Protocol, 0, 3)
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
	m := elementTarget{fam: ipv4, set: affinityMap(affinityID(p.Name), proxy.PoolCluster)}
	if err := w.kernel.forgetClients(t.Context(), m, []string{string(clientKey(ipv4, 1))}); err != nil {
		t.Fatal(err)
	}
	w.drifted(t, "after nothing", false)
	w.nft(t, "flush ruleset")
	w.drifted(t, "after a flush", true)
}

// A process that knows its tables reads them back however large they are: what
// others do is no reason to make them anew.
func TestResyncReadsBack(t *testing.T) {
	w := newWatched(t, 0)
	world := proxy.NewSnapshot(stagetest.Node(), manyPorts(20)...)
	w.Apply(t, world)
	w.Apply(t, world)
	before := w.kernel.Operations()
	w.Applied = proxy.Snapshot{}
	w.Apply(t, world)
	if got := w.kernel.Operations() - before; got != 0 {
		t.Errorf("a resync took %d operations, want 0", got)
	}
}

// What others took away right before a commit is missing, and not unsupported: the
// backend looks again, and does not give up.
func TestMissingIsNotUnsupported(t *testing.T) {
	w := newWatched(t, listLimit)
	small, large := stickyPort(v1.IPv4Protocol, 0, 2), stickyPort(v1.IPv4Protocol, 0, 9)
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), small))
	transact := w.kernel.transact
	w.kernel.transact = func(ctx context.Context, b *nfnetlink.Batch) error {
		w.kernel.transact = transact
		w.nft(t, "flush table ip vipkit")
		w.nft(t, "delete map ip vipkit "+affinityMap(affinityID(small.Name), proxy.PoolCluster))
		return transact(ctx, b)
	}
	next := proxy.NewSnapshot(w.Applied.Node(), large)
	err := w.Backend.Apply(t.Context(), w.Applied, next)
	if !errors.Is(err, proxy.ErrDataplaneLost) || errors.Is(err, proxy.ErrUnsupported) || !strings.Contains(err.Error(), "add rule") {
		t.Errorf("got error %v, want %v of a rule", err, proxy.ErrDataplaneLost)
	}
	w.repair(t, next)
}
