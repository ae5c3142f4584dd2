package nftables

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
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
	w.kernel.limit = limit
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

// Whatever changes in our tables is noticed: most of it at the next look, and
// what leaves no other trace within a minute.
func TestDriftedNoticesOurTables(t *testing.T) {
	for _, tc := range []struct {
		name     string
		commands []string
		later    bool
	}{
		{"a rule more", []string{"add rule ip vipkit services counter"}, false},
		{"no rules in a chain", []string{"flush chain ip vipkit reject-service"}, false},
		{"a chain more", []string{"add chain ip6 vipkit theirs"}, false},
		{"a base chain that drops", []string{"add chain ip vipkit prerouting { policy drop; }"}, false},
		{"a set more", []string{"add set ip vipkit theirs { type ipv4_addr; }"}, false},
		{"a table more", []string{"add table ip vipkit_2"}, false},
		{"no table", []string{"delete table ip6 vipkit"}, false},
		{"nothing", []string{"flush ruleset"}, false},
		{"an element less", []string{"delete element ip vipkit services { 10.128.0.1 . tcp . 80 }"}, false},
		{"another element", []string{"delete element ip vipkit hairpins { 10.0.0.1 . 10.0.0.1 }", "add element ip vipkit hairpins { 10.0.0.9 . 10.0.0.9 }"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWatched(t, listLimit)
			w.Apply(t, proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 2)))
			w.drifted(t, "before", false)
			nftDoes(tc.commands...)(t, w.stage)
			if tc.later {
				w.drifted(t, "at once", false)
				w.nft(t, "add table ip somebody-elses")
				w.aMinutePasses()
			}
			w.drifted(t, "after it", true)
		})
	}
}

// aMinutePasses makes the last look at all elements one that was long ago.
func (w *watched) aMinutePasses() {
	d := &w.kernel.drift
	d.looked = time.Now().Add(-2 * max(lookEvery, lookShare*d.took))
}

// What others did is looked at within a minute also where they do nothing more
// after it.
func TestDriftedNoticesWhoCameOnce(t *testing.T) {
	world := proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 2))
	more := proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 2), stagetest.Port(v1.IPv4Protocol, 1, 20))
	for what, theirs := range map[string]func(t *testing.T, w *watched){
		"another element": func(t *testing.T, w *watched) {
			nftDoes("delete element ip vipkit hairpins { 10.0.0.1 . 10.0.0.1 }", "add element ip vipkit hairpins { 10.0.0.9 . 10.0.0.9 }")(t, w.stage)
		},
		"no rules in a chain, where ours have just changed": func(t *testing.T, w *watched) {
			w.Apply(t, more)
			w.nft(t, "flush chain ip vipkit reject-service")
		},
		"no rules in a chain, while that was looked at": func(t *testing.T, w *watched) {
			start := time.Now()
			w.nft(t, "flush chain ip vipkit reject-service")
			w.kernel.seen(t.Context(), start)
		},
	} {
		w := newWatched(t, listLimit)
		w.Apply(t, world)
		theirs(t, w)
		w.drifted(t, what+": at once", false)
		w.drifted(t, what+": soon after", false)
		w.aMinutePasses()
		w.drifted(t, what+": a minute later", true)
		w.Applied = proxy.Snapshot{}
		w.Apply(t, more)
		w.aMinutePasses()
		w.drifted(t, what+": after the repair", false)
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
