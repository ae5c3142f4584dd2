package nftables

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// smallSet is the least size of a set in tests of growth.
const smallSet = 16

// The backend changes from any size to any other, with other changes and with faults.
func TestGrowth(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]limits{
		"list tables":    {list: listLimit, set: smallSet},
		"replace tables": {list: 0, set: smallSet},
		"list if small":  {list: 3 * smallSet, set: smallSet},
	} {
		for _, maxBatch := range []int{0, 4 << 10} {
			t.Run(fmt.Sprintf("%s, batches of %d", name, maxBatch), func(t *testing.T) {
				testGrowth(t, limits, maxBatch)
			})
		}
	}
}

func testGrowth(t *testing.T, limits limits, maxBatch int) {
	r := testenv.Random(t)
	s := newStage(t, Options{})
	d := stagetest.DisturbNFT(func() { s.nft(t, "flush ruleset") })
	g := stagetest.Growth{
		Sizes: stagetest.SizesAround(4, 8, smallSet/2, smallSet, 2*smallSet, 4*smallSet, 8*smallSet),
		Steps: 200,
		New: func() (b proxy.Backend, err error) {
			err = s.NS.Do(func() error {
				k, err := newKernel(s.Options)
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = k.Close() })
				k.limits = limits
				d.Limit(k.Conn, maxBatch)
				b = backends.New(k.render, k)
				return nil
			})
			return b, err
		},
		Fault: d.Set,
		Dump:  func() string { return s.dump(t) },
		Fresh: func(want proxy.Snapshot) string {
			fresh := newStage(t, Options{})
			fresh.Apply(t, want)
			return fresh.dump(t)
		},
	}
	g.Run(t, r)
	if d.Met == 0 {
		t.Error("failed transactions: got none, want some")
	}
	g.RunRefusals(t, d)
}

// dump returns the objects in the kernel, without the difference of the two table names.
func (s *stage) dump(t testing.TB) (out string) {
	t.Helper()
	err := s.NS.Do(func() (err error) {
		out, err = Dump(t.Context())
		return err
	})
	testenv.NoError(t, err)
	return strings.ReplaceAll(out, "vipkit_2", "vipkit")
}

// A Service grows from few endpoints to more than its set has room for, which needs a new
// chain in the same Apply, and shrinks again. The sizes are those of production.
func TestGrowthOfOneService(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{})
	for _, n := range []int{3, leastSize + leastSize/10, 3, 4*leastSize + 1, 1} {
		s.Apply(t, oneService(n))
		s.counts(t, map[string]int{"endpoints": n})
	}
	s.Restart(t)
	s.Apply(t, oneService(1))
	s.Apply(t, oneService(9*leastSize))
	s.counts(t, map[string]int{"endpoints": 9 * leastSize})
}

// oneService returns a snapshot of a Service with n endpoints.
func oneService(n int) proxy.Snapshot {
	p := stagetest.Port(v1.IPv4Protocol, 0, 0)
	p.Cluster = stagetest.Hosts(v1.IPv4Protocol, n)
	return proxy.NewSnapshot(stagetest.Node(), p)
}
