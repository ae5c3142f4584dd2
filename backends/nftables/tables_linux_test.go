package nftables

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// restartReplacing replaces the backend by one that lists no existing tables but replaces
// them.
func (s *stage) restartReplacing(t *testing.T) {
	t.Helper()
	err := s.NS.Do(func() error {
		k, err := newKernel(s.Options)
		if err != nil {
			return err
		}
		k.limits.list = 0
		s.Backend, s.Applied = backends.New(k.render, k), proxy.Snapshot{}
		t.Cleanup(func() {
			if err := k.Close(); err != nil {
				t.Error(err)
			}
		})
		return nil
	})
	testenv.NoError(t, err)
}

// tableNames returns the names of all tables, IPv4 first.
func (s *stage) tableNames(t *testing.T) (names []string) {
	t.Helper()
	for _, fam := range []nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6} {
		var all []nfnetlink.TableInfo
		testenv.NoError(t, s.conn(t).Tables(t.Context(), fam, nfnetlink.Collect(&all)))
		for i := range all {
			names = append(names, all[i].Name)
		}
	}
	return names
}

// No connection is lost while tables are replaced.
func TestNoConnectionIsLostToReplacement(t *testing.T) {
	t.Parallel()
	const most, least, leastConnections = 300, 20, 100
	s := newTestbed(t, 4)
	vip := stagetest.Port(v1.IPv4Protocol, 0, 0)
	vip.Cluster = s.pool(0, 4)
	snapshot := proxy.NewSnapshot(stagetest.Node(), append(manyPorts(200), vip)...)
	s.Apply(t, snapshot)
	c := s.connectRepeatedly(t, vip.Frontends[0].Addr.String())
	times, start := 0, time.Now()
	for ; times < most && continues(start, 4*time.Second, times >= least && c.connections.Load() >= leastConnections); times++ {
		s.restartReplacing(t)
		s.Apply(t, snapshot)
		want := []string{"vipkit_2", "vipkit_2"}
		if times%2 == 1 {
			want = []string{"vipkit", "vipkit"}
		}
		if diff := cmp.Diff(want, s.tableNames(t)); diff != "" {
			t.Fatalf("tables after replacement %d (-want +got):\n%s", times+1, diff)
		}
	}
	connections, failed := c.end()
	t.Logf("%d connections, %d failed, while the tables were replaced %d times", connections, failed, times)
	if connections < leastConnections || times < least {
		t.Errorf("got %d connections and %d replacements, want at least %d and %d", connections, times, leastConnections, least)
	}
}

func manyPorts(n int) []*proxy.ServicePort {
	return objects.Many(n, func(i int) *proxy.ServicePort { return stagetest.Port(v1.IPv4Protocol, 1+i, 3) })
}

// The unfinished tables of an earlier process are removed, and the serving ones are kept.
func TestUnfinishedTablesAreRemoved(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		// serving is the number of replacements before one that is not finished.
		serving int
		// finished is true if the tables of the last one serve, but the old tables were not
		// removed.
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
			t.Parallel()
			s := newStage(t)
			snapshot := proxy.NewSnapshot(stagetest.Node(), manyPorts(20)...)
			s.Apply(t, snapshot)
			for range tc.serving {
				s.restartReplacing(t)
				s.Apply(t, snapshot)
			}
			s.leaveHalfway(t, snapshot, tc.finished)
			if got := len(s.tableNames(t)); got != 4 {
				t.Fatalf("tables after an unfinished replacement: got %d, want 4", got)
			}
			s.Restart(t)
			s.Apply(t, snapshot)
			if diff := cmp.Diff([]string{tc.want, tc.want}, s.tableNames(t)); diff != "" {
				t.Errorf("tables (-want +got):\n%s", diff)
			}
			if n := s.Operations(t); n != tc.writes {
				t.Errorf("operations: got %d, want %d, to remove two tables", n, tc.writes)
			}
		})
	}
}

// leaveHalfway replaces the tables, but ends before the old ones are removed, and unless
// finished is true, before the new ones serve.
func (s *stage) leaveHalfway(t *testing.T, snapshot proxy.Snapshot, finished bool) {
	t.Helper()
	err := s.NS.Do(func() error {
		k, err := newKernel(s.Options)
		if err != nil {
			return err
		}
		defer k.Close() //nolint:errcheck // as if the process had ended
		k.limits.list = 0
		return backends.New(k.render, interrupted{k, finished}).Apply(t.Context(), proxy.Snapshot{}, snapshot)
	})
	testenv.NoError(t, err)
}

// interrupted is a kernel edge that does not finish replacements.
type interrupted struct {
	*kernel
	finished bool
}

func (k interrupted) Abilities() backends.TargetAbilities[key, value] {
	a := k.kernel.Abilities()
	a.Replace = k.replace
	return a
}

func (k interrupted) replace(ctx context.Context, want proxy.Snapshot, must bool) backends.Replacement[key, value] {
	r, ok := k.kernel.Replace(ctx, want, must).(*replacement)
	if !ok {
		return nil
	}
	return interruptedReplacement{r, k.finished}
}

type interruptedReplacement struct {
	*replacement
	finished bool
}

func (r interruptedReplacement) Finish(ctx context.Context) error {
	if !r.finished {
		return nil
	}
	return r.kernel.Commit(ctx, r.bases).Err()
}

// Cleanup also removes the tables of an unfinished replacement.
func TestCleanupRemovesBothTables(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	snapshot := proxy.NewSnapshot(stagetest.Node(), manyPorts(3)...)
	s.Apply(t, snapshot)
	s.leaveHalfway(t, snapshot, false)
	s.Restart(t)
	testenv.NoError(t, s.Backend.Cleanup(t.Context()))
	if got := s.tableNames(t); len(got) > 0 {
		t.Errorf("tables after Cleanup: got %v, want none", got)
	}
}

// A foreign table under the second name is removed, whatever it has, and the serving table
// is kept.
func TestForeignSecondTable(t *testing.T) {
	t.Parallel()
	w := newWatched(t, listLimit)
	snapshot := proxy.NewSnapshot(stagetest.Node(), manyPorts(5)...)
	w.Apply(t, snapshot)
	w.load(t, "table ip vipkit_2 { chain theirs { type filter hook prerouting priority -300; }; }")
	before := w.kernel.ops.Load()
	w.Applied = proxy.Snapshot{}
	w.Apply(t, snapshot)
	if got := w.kernel.ops.Load() - before; got != 1 {
		t.Errorf("operations: got %d, want one, to remove the foreign table", got)
	}
	if got := w.nft(t, "list ruleset"); strings.Contains(got, "theirs") || !strings.Contains(got, "table ip vipkit {") {
		t.Errorf("ruleset: got\n%s\nwant table vipkit, and not the foreign one", got)
	}
}
