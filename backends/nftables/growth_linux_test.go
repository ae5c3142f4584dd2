package nftables

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// smallSet is the least size of a set where growth is tested.
const smallSet = 16

// disturbance has transactions fail as the kernel lets them fail.
func disturbance(s *stage, t *testing.T) *stagetest.Disturbance {
	d := &stagetest.Disturbance{
		Unknown: nfnetlink.ErrUnknownOutcome, Flush: func() { s.nft(t, "flush ruleset") },
		Refusals: []error{context.DeadlineExceeded},
	}
	for _, errno := range []unix.Errno{unix.ENOMEM, unix.ENOBUFS, unix.EEXIST, unix.EBUSY, unix.ENFILE, unix.EINVAL} {
		d.Refusals = append(d.Refusals, &nfnetlink.Error{Errno: errno, Op: "add element", Message: -1})
	}
	return d
}

// From any size to any other, whatever else changes and whatever fails on the way.
func TestGrowth(t *testing.T) {
	for name, limits := range map[string]limits{
		"read back":  {list: listLimit, set: smallSet},
		"made anew":  {list: 0, set: smallSet},
		"from small": {list: 3 * smallSet, set: smallSet},
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
	d := disturbance(s, t)
	g := stagetest.Growth{
		Sizes: stagetest.SizesAround(4, 8, smallSet/2, smallSet, 2*smallSet, 4*smallSet, 8*smallSet),
		Steps: 200,
		New: func() (b proxy.Backend, err error) {
			err = s.NS.Do(func() error {
				k, err := newKernel(s.Options)
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = k.close() })
				k.limits = limits
				k.conn.LimitBatch(maxBatch)
				transact := k.transact
				k.transact = func(ctx context.Context, b *nfnetlink.Batch) error {
					return d.Around(func() error { return transact(ctx, b) })
				}
				b = backends.New(k.book.render, k)
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
		t.Error("no transaction failed: the test shows nothing")
	}
}

// dump gives what is in the kernel, whatever the names of the tables are.
func (s *stage) dump(t testing.TB) (out string) {
	t.Helper()
	err := s.NS.Do(func() (err error) {
		out, err = Dump(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(out, "vipkit_2", "vipkit")
}

// One Service that grows from few endpoints to more than its set has room for needs a new
// chain in the same Apply; and so back, with the sizes that programs have.
func TestGrowthOfOneService(t *testing.T) {
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

// oneService has a Service with so many endpoints.
func oneService(n int) proxy.Snapshot {
	p := stagetest.Port(v1.IPv4Protocol, 0, 0)
	p.Cluster = stagetest.Hosts(v1.IPv4Protocol, n)
	return proxy.NewSnapshot(stagetest.Node(), p)
}
