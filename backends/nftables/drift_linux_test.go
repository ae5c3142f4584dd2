package nftables

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// watched is a stage with access to the kernel edge of its backend.
type watched struct {
	*stage
	kernel *kernel
}

func newWatched(t *testing.T, limit int) *watched {
	t.Helper()
	w := &watched{stage: newStage(t)}
	err := w.NS.Do(func() (err error) {
		w.kernel, err = newKernel(w.Options)
		return err
	})
	testenv.NoError(t, err)
	w.kernel.limits.list = limit
	w.Backend = backends.New(w.kernel.render, w.kernel)
	t.Cleanup(func() {
		if err := w.kernel.Close(); err != nil {
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

// The backend's own commits are not drift, and neither are commits of other programs to
// their own tables.
func TestDriftedIgnoresForeignTables(t *testing.T) {
	t.Parallel()
	w := newWatched(t, listLimit)
	p := stickyPort(v1.IPv4Protocol, 0, 2)
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
	w.drifted(t, "after a first load", false)
	w.nft(t, "add table ip somebody-elses")
	w.drifted(t, "after a foreign commit", false)
	w.addClients(t, p, 4)
	w.drifted(t, "after another program added clients", true) // packets add them without a commit
	w.repair(t, w.Applied)
	w.drifted(t, "after a resync with clients", false)
	one := *p
	one.Cluster = p.Cluster[:1]
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &one))
	w.drifted(t, "after a change that removed clients", false)
	w.nft(t, "add chain ip somebody-elses theirs")
	w.drifted(t, "after an own change and a foreign one", false)
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &one, stagetest.Port(v1.IPv4Protocol, 1, 20)))
	w.nft(t, "add chain ip somebody-elses more")
	w.drifted(t, "after new own chains, and foreign changes", false)
}

// Every foreign change of the backend's tables is noticed at once, and repaired by the next
// resync.
func TestDriftedNoticesOwnTables(t *testing.T) {
	t.Parallel()
	snapshot := proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 2))
	for name, commands := range map[string][]string{
		"a rule added":              {"add rule ip vipkit services counter"},
		"no rules in a chain":       {"flush chain ip vipkit reject-service"},
		"a chain added":             {"add chain ip6 vipkit theirs"},
		"a base chain's policy":     {"add chain ip vipkit prerouting { policy drop; }"},
		"a set added":               {"add set ip vipkit theirs { type ipv4_addr; }"},
		"a table added":             {"add table ip vipkit_2"},
		"no table":                  {"delete table ip6 vipkit"},
		"a flush":                   {"flush ruleset"},
		"two flushes":               {"flush ruleset", "flush ruleset"},
		"a dormant table":           {"add table ip vipkit { flags dormant; }"},
		"an element removed":        {"delete element ip vipkit services { 10.128.0.1 . tcp . 80 }"},
		"another element":           {"delete element ip vipkit hairpins { 10.0.0.1 . 10.0.0.1 }", "add element ip vipkit hairpins { 10.0.0.9 . 10.0.0.9 }"},
		"a catch-all service":       {"add element ip vipkit services { * : drop }"},
		"a catch-all ClusterIP":     {"add element ip vipkit cluster-ips { * }"},
		"a catch-all hairpin":       {"add element ip vipkit hairpins { * }"},
		"a catch-all endpoint":      {"add element ip vipkit endpoints { * : 10.0.0.9 . 99 }"},
		"a service at no address":   {"add element ip vipkit services { 0.0.0.0 . tcp . 80 : drop }"},
		"an endpoint at no address": {"add element ip vipkit endpoints { 0.0.0.0 . tcp . 80 . 0 : 10.0.0.9 . 99 }"},
		"a foreign rule":            {"flush chain ip vipkit output", "add rule ip vipkit output jump services"},
		"a chain renamed":           {"rename chain ip vipkit pick-4 pick-5"},
		"chains that swapped names": {
			"rename chain ip vipkit pick-4 pick-5", "rename chain ip vipkit masquerade-pick-4 pick-4", "rename chain ip vipkit pick-5 masquerade-pick-4",
		},
		"a base chain renamed":               {"rename chain ip vipkit output pick-16"},
		"a chain in use, under another name": {"flush chain ip vipkit pick-4", "rename chain ip vipkit pick-4 pick-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, listLimit)
			w.Apply(t, snapshot)
			w.drifted(t, "before", false)
			for _, c := range commands {
				w.nft(t, c)
			}
			w.drifted(t, "after it", true)
			w.drifted(t, "after a first call of Drifted", true)
			if err := w.kernel.WaitDrift(t.Context()); err != nil {
				t.Errorf("WaitDrift after drift: got error %v, want none", err)
			}
			w.repair(t, snapshot)
			w.drifted(t, "after the repair", false)
			fresh := newStage(t)
			fresh.Apply(t, snapshot)
			if diff := cmp.Diff(fresh.listing(t), strings.ReplaceAll(w.listing(t), "vipkit_2", "vipkit")); diff != "" {
				t.Errorf("ruleset after the repair and of a first load (-first load +got):\n%s", diff)
			}
		})
	}
}

// A set to which an administrator added a limit, by loading an edited listing of nft, is
// repaired. All of its elements have the limit.
func TestEditedSetsAreRepaired(t *testing.T) {
	t.Parallel()
	snapshot := sampleSnapshot()
	fresh := newStage(t)
	fresh.Apply(t, snapshot)
	want := fresh.listing(t)
	w := newWatched(t, listLimit)
	w.Apply(t, snapshot)
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
			w.repair(t, snapshot)
			if diff := cmp.Diff(want, strings.ReplaceAll(w.listing(t), "vipkit_2", "vipkit")); diff != "" {
				t.Errorf("ruleset after the repair and of a first load (-first load +got):\n%s", diff)
			}
		})
	}
	if edited <= setCount {
		t.Errorf("edited sets: got %d, want more than %d", edited, setCount)
	}
}

// A catch-all element of an affinity map, which would send all clients to one endpoint, is
// removed by a resync, and also when that endpoint is removed.
func TestNoEndpointForAllClients(t *testing.T) {
	t.Parallel()
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
		"an endpoint removed":        {p.Cluster[2].Addr.Addr().String(), three, proxy.NewSnapshot(node, &two)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, listLimit)
			w.Apply(t, three)
			w.nft(t, "add element ip vipkit "+affinityMap(affinityID(p.Name), proxy.PoolCluster)+" { * : "+step.endpoint+" . 8080 }")
			w.Applied = step.old
			w.Apply(t, step.new)
			if got := w.listing(t); strings.Contains(got, "* :") {
				t.Errorf("catch-all element: got one, want none:\n%s", got)
			}
		})
	}
}

// Removing clients that have expired meanwhile hides no later commit of another program.
func TestDriftedAfterNothingWasRemoved(t *testing.T) {
	t.Parallel()
	w := newWatched(t, listLimit)
	p := stickyPort(v1.IPv4Protocol, 0, 3)
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
	m := elementTarget{table: w.kernel.tables.table(nfnetlink.IPv4), set: affinityMap(affinityID(p.Name), proxy.PoolCluster)}
	testenv.NoError(t, w.kernel.forgetClients(t.Context(), m, []string{string(clientKey(nfnetlink.IPv4, 1))}))
	w.drifted(t, "after removing no client", false)
	w.nft(t, "flush ruleset")
	w.drifted(t, "after a flush", true)
}

// A process that has verified its tables lists them at a resync, however large they are, and
// does not replace them.
func TestResyncListsTables(t *testing.T) {
	t.Parallel()
	w := newWatched(t, 0)
	snapshot := proxy.NewSnapshot(stagetest.Node(), manyPorts(20)...)
	w.Apply(t, snapshot)
	w.Apply(t, snapshot)
	before := w.kernel.ops.Load()
	w.Applied = proxy.Snapshot{}
	w.Apply(t, snapshot)
	if got := w.kernel.ops.Load() - before; got != 0 {
		t.Errorf("operations of a resync: got %d, want 0", got)
	}
}

// If another program removes objects right before a commit, the error is ErrDataplaneLost,
// which a resync repairs, and not ErrUnsupported.
func TestMissingIsNotUnsupported(t *testing.T) {
	t.Parallel()
	w := newWatched(t, listLimit)
	small, large := stickyPort(v1.IPv4Protocol, 0, 2), stickyPort(v1.IPv4Protocol, 0, 9)
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), small))
	transact := w.kernel.Transact
	w.kernel.Transact = func(ctx context.Context, b *nfnetlink.Batch) error {
		w.kernel.Transact = transact
		w.nft(t, "flush table ip vipkit")
		w.nft(t, "delete map ip vipkit "+affinityMap(affinityID(small.Name), proxy.PoolCluster))
		return transact(ctx, b)
	}
	next := proxy.NewSnapshot(w.Applied.Node(), large)
	err := w.Backend.Apply(t.Context(), w.Applied, next)
	if !errors.Is(err, proxy.ErrDataplaneLost) || errors.Is(err, proxy.ErrUnsupported) || !strings.Contains(err.Error(), "add rule") {
		t.Errorf("Apply: got error %v, want %v of a rule", err, proxy.ErrDataplaneLost)
	}
	w.repair(t, next)
}

// Where nobody else has changed the tables, a rule for which the kernel lacks something is
// unsupported, and not missing: another try would be in vain.
func TestUnsupportedIsNotMissing(t *testing.T) {
	t.Parallel()
	w := newWatched(t, listLimit)
	w.Apply(t, proxy.NewSnapshot(stagetest.Node(), manyPorts(2)...))
	w.kernel.Transact = func(context.Context, *nfnetlink.Batch) error {
		return &nfnetlink.Error{Errno: unix.ENOENT, Op: "add rule", Object: "pick-4"}
	}
	err := w.Backend.Apply(t.Context(), w.Applied, proxy.NewSnapshot(stagetest.Node(), manyPorts(3)...))
	if !errors.Is(err, proxy.ErrUnsupported) || errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("got error %v, want %v, and not %v", err, proxy.ErrUnsupported, proxy.ErrDataplaneLost)
	}
}
