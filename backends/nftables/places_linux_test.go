package nftables

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// beginAnew puts a backend in the place of the one before that reads nothing
// back.
func (s *stage) beginAnew(t *testing.T) {
	t.Helper()
	err := s.NS.Do(func() error {
		k, err := newKernel(s.Options)
		if err != nil {
			return err
		}
		k.limits.list = 0
		s.Backend, s.Applied = backends.New(k.book.render, k), proxy.Snapshot{}
		t.Cleanup(func() {
			if err := k.conn.Close(); err != nil {
				t.Error(err)
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tableNames gives the names of all tables, IPv4 first.
func (s *stage) tableNames(t *testing.T) (names []string) {
	t.Helper()
	for _, fam := range []nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6} {
		var all []nfnetlink.TableInfo
		if err := s.conn(t).Tables(t.Context(), fam, nfnetlink.Collect(&all)); err != nil {
			t.Fatal(err)
		}
		for i := range all {
			names = append(names, all[i].Name)
		}
	}
	return names
}

// No connection is lost while everything is made anew beside what serves.
func TestNoConnectionIsLostToReplacement(t *testing.T) {
	const most, least, leastAsked = 300, 20, 100
	s := newStreet(t, 4)
	vip := stagetest.Port(v1.IPv4Protocol, 0, 0)
	vip.Cluster = s.pool(0, 4)
	world := proxy.NewSnapshot(stagetest.Node(), append(manyPorts(200), vip)...)
	s.Apply(t, world)
	c := s.askOnAndOn(t, vip.Frontends[0].Addr.String())
	times, start := 0, time.Now()
	for ; times < most && goesOn(start, 4*time.Second, times >= least && c.asked.Load() >= leastAsked); times++ {
		s.beginAnew(t)
		s.Apply(t, world)
		want := []string{"vipkit_2", "vipkit_2"}
		if times%2 == 1 {
			want = []string{"vipkit", "vipkit"}
		}
		if diff := cmp.Diff(want, s.tableNames(t)); diff != "" {
			t.Fatalf("tables after replacement %d (-want +got):\n%s", times+1, diff)
		}
	}
	asked, failed := c.end()
	t.Logf("%d connections, %d failed, while everything was replaced %d times", asked, failed, times)
	if asked < leastAsked || times < least {
		t.Errorf("only %d connections and %d replacements show nothing", asked, times)
	}
}

func manyPorts(n int) (ports []*proxy.ServicePort) {
	for i := range n {
		ports = append(ports, stagetest.Port(v1.IPv4Protocol, 1+i, 3))
	}
	return ports
}

// What an earlier process left unfinished is removed, and what serves is kept.
func TestUnfinishedTablesGo(t *testing.T) {
	for _, tc := range []struct {
		name string
		// serving are the replacements before one that is not finished.
		serving int
		// finished says that the last one served, but the old tables stayed.
		finished bool
		want     string
		writes   uint64
	}{
		{"second unfinished", 0, false, "vipkit", 2},
		{"first unfinished", 1, false, "vipkit_2", 2},
		{"second finished", 0, true, "vipkit_2", 2},
		{"first finished", 1, true, "vipkit", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, Options{})
			world := proxy.NewSnapshot(stagetest.Node(), manyPorts(20)...)
			s.Apply(t, world)
			for range tc.serving {
				s.beginAnew(t)
				s.Apply(t, world)
			}
			s.leaveHalfway(t, world, tc.finished)
			if got := len(s.tableNames(t)); got != 4 {
				t.Fatalf("got %d tables half-way, want 4", got)
			}
			s.Restart(t)
			s.Apply(t, world)
			if diff := cmp.Diff([]string{tc.want, tc.want}, s.tableNames(t)); diff != "" {
				t.Errorf("tables (-want +got):\n%s", diff)
			}
			if n := s.Operations(t); n != tc.writes {
				t.Errorf("got %d operations, want %d: two tables are removed and nothing else", n, tc.writes)
			}
		})
	}
}

// leaveHalfway replaces everything, but ends before the old tables go, and
// unless finished, before the new ones serve.
func (s *stage) leaveHalfway(t *testing.T, world proxy.Snapshot, finished bool) {
	t.Helper()
	err := s.NS.Do(func() error {
		k, err := newKernel(s.Options)
		if err != nil {
			return err
		}
		defer k.conn.Close() //nolint:errcheck // as if the process had ended
		k.limits.list = 0
		err = backends.New(k.book.render, interrupted{k, finished}).Apply(t.Context(), proxy.Snapshot{}, world)
		if err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// interrupted is a kernel edge that does not get to the end of a replacement.
type interrupted struct {
	*kernel
	finished bool
}

func (k interrupted) Replaced(ctx context.Context) error {
	if !k.finished {
		return nil
	}
	return k.commit(ctx, k.holdNoMore())
}

func (k interrupted) holdNoMore() []op {
	k.places.beside = false
	return slices.Clone(k.places.held)
}

// TestCleanupTakesBothTables: cleanup leaves nothing of a replacement that was
// not finished.
func TestCleanupTakesBothTables(t *testing.T) {
	s := newStage(t, Options{})
	world := proxy.NewSnapshot(stagetest.Node(), manyPorts(3)...)
	s.Apply(t, world)
	s.leaveHalfway(t, world, false)
	s.Restart(t)
	if err := s.Backend.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.tableNames(t); len(got) > 0 {
		t.Errorf("tables after Cleanup: %v, want none", got)
	}
}

// TestReplacementKeepsWhatServes: until the new tables are complete, no packet
// goes there, and the old ones are as they were.
func TestReplacementKeepsWhatServes(t *testing.T) {
	s := newStage(t, Options{})
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), manyPorts(3)...))
	before := s.nft(t, "list", "table", "ip", "vipkit")
	s.leaveHalfway(t, proxy.NewSnapshot(stagetest.Node(), manyPorts(20)...), false)
	if diff := cmp.Diff(before, s.nft(t, "list", "table", "ip", "vipkit")); diff != "" {
		t.Errorf("what serves (-before +after):\n%s", diff)
	}
	if got := s.nft(t, "list", "table", "ip", "vipkit_2"); strings.Contains(got, "hook") || !strings.Contains(got, "10.128.0.21") {
		t.Errorf("the table beside it: want it complete but for its base chains, got:\n%s", got)
	}
}

// A table that somebody else made under the name of the second one goes, whatever it
// holds, and that which serves stays until there is another.
func TestForeignSecondTable(t *testing.T) {
	w := newWatched(t, listLimit)
	world := proxy.NewSnapshot(stagetest.Node(), manyPorts(5)...)
	w.Apply(t, world)
	w.load(t, "table ip vipkit_2 { chain theirs { type filter hook prerouting priority -300; }; }")
	before := w.kernel.Operations()
	w.Applied = proxy.Snapshot{}
	w.Apply(t, world)
	if got := w.kernel.Operations() - before; got != 1 {
		t.Errorf("got %d operations, want one: to remove the other table", got)
	}
	if got := w.nft(t, "list ruleset"); strings.Contains(got, "theirs") || !strings.Contains(got, "table ip vipkit {") {
		t.Errorf("the ruleset has the other's table, or not ours:\n%s", got)
	}
}
