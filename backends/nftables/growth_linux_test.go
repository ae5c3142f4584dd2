package nftables

import (
	"fmt"
	"strings"
	"testing"

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
	s := newStage(t)
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
			fresh := newStage(t)
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
