package nftables

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// renderKernel returns a kernel edge without connection, for tests that only render.
func renderKernel(t *testing.T) *kernel {
	t.Helper()
	identity, err := backends.Identity{}.Complete(kinds.NFTables.Defaults())
	testenv.NoError(t, err)
	k := &kernel{renderer: newRenderer(Options{Identity: identity})}
	k.tables = k.newTables()
	return k
}

// counted counts the objects of the first list less those of the others. Shared objects may
// occur several times in a list.
func counted(lists ...[]object) map[object]int {
	out := map[object]int{}
	for i, list := range lists {
		for _, o := range list {
			out[object{Key: o.Key, Value: o.Value}] += 1 - 2*i
		}
	}
	for o, n := range out {
		if n == 0 {
			delete(out, o)
		}
	}
	return out
}

// TestRenderDiffIsTheDifference checks that RenderDiff returns the difference of two full
// renderings, or is not ok.
func TestRenderDiffIsTheDifference(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	k := renderKernel(t)
	node := &proxy.Node{}
	short := 0
	for range 20_000 {
		c := randomChange(r)
		removed, added, ok := k.RenderDiff(node, c, nil, nil)
		if !ok {
			if len(removed)+len(added) > 0 {
				t.Fatalf("objects of a RenderDiff that is not ok: got %v, %v, want none", removed, added)
			}
			continue
		}
		short++
		want := counted(k.render(node, c.New, nil), k.render(node, c.Old, nil))
		got := counted(added, removed)
		if fmt.Sprint(want) != fmt.Sprint(got) {
			t.Fatalf("from %+v\nto   %+v:\ngot  %v\nwant %v", c.Old, c.New, got, want)
		}
	}
	if short < 1000 {
		t.Errorf("changes for which RenderDiff is ok: got %d of 20000, want at least 1000", short)
	}
}

// randomChange changes the endpoints of a service port, and sometimes more.
func randomChange(r *rand.Rand) proxy.Change {
	fam := []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}[r.IntN(2)]
	one := stagetest.Port(fam, 1, 0)
	if r.IntN(2) == 0 {
		one.Frontends = append(one.Frontends, stagetest.NodePort(fam, 30080))
	}
	if r.IntN(2) == 0 {
		one.Frontends[0].FromOutside.Pool = proxy.PoolLocal
	}
	if r.IntN(3) == 0 {
		one.Affinity = affinity.Config{Timeout: time.Hour}
	}
	other := *one
	switch r.IntN(6) {
	case 0:
		other.Affinity = affinity.Config{Timeout: time.Minute}
	case 1:
		other.Frontends = slices.Clone(one.Frontends)
		other.Frontends[0].FromInside.Masquerade = proxy.MasqueradeAlways
	case 2:
		other.Frontends = slices.Clone(one.Frontends)
	}
	most := 1 + r.IntN(7)
	one.Cluster, one.Local = randomPool(r, fam, most), randomPool(r, fam, most)
	other.Cluster, other.Local = randomPool(r, fam, most), randomPool(r, fam, most)
	if r.IntN(2) == 0 { // as in a tracker, unchanged endpoints are the same pointers
		other.Cluster = append(slices.Clone(one.Cluster), other.Cluster...)
		slices.SortFunc(other.Cluster, (*endpoints.Endpoint).Compare)
		other.Cluster = slices.CompactFunc(other.Cluster, func(a, b *endpoints.Endpoint) bool { return a.Addr == b.Addr })
	}
	return proxy.Change{Old: one, New: &other}
}

func randomPool(r *rand.Rand, fam v1.IPFamily, most int) (pool []*endpoints.Endpoint) {
	for i := range 8 {
		if r.IntN(8) < most {
			e := stagetest.Endpoint(fam, 100+i, 8080)
			e.Serving = r.IntN(2) == 0
			pool = append(pool, e)
		}
	}
	return pool
}

// TestCheck checks that routes which pass packets are refused.
func TestCheck(t *testing.T) {
	t.Parallel()
	p := stagetest.Port(v1.IPv4Protocol, 1, 3)
	if err := check(stagetest.Node(), p); err != nil {
		t.Errorf("a valid port: got error %v, want none", err)
	}
	p.Frontends[0].FromOutside.Action = proxy.Pass
	if err := check(stagetest.Node(), p); err == nil {
		t.Error("a route that passes: got no error, want one")
	}
}

// TestRenderDiffOfManyIsSmall checks that a change of one endpoint of thousands renders only
// the objects of that endpoint.
func TestRenderDiffOfManyIsSmall(t *testing.T) {
	k, old, node := renderKernel(t), stagetest.Port(v1.IPv4Protocol, 1, 5000), &proxy.Node{}
	other := *old
	other.Cluster = slices.Clone(old.Cluster)
	other.Cluster[2500] = stagetest.Endpoint(v1.IPv4Protocol, 3_000_000, 8080)
	slices.SortFunc(other.Cluster, (*endpoints.Endpoint).Compare)
	change := proxy.Change{Old: old, New: &other}
	removed, added, ok := k.RenderDiff(node, change, nil, nil)
	if !ok || len(removed) != 2 || len(added) != 2 {
		t.Fatalf("RenderDiff: got %d objects removed and %d added (ok: %v), want a slot and a hairpin each", len(removed), len(added), ok)
	}
	if got := testing.AllocsPerRun(100, func() { k.RenderDiff(node, change, removed[:0], added[:0]) }); got > 2 {
		t.Errorf("allocations: got %v, want at most 2", got)
	}
}
