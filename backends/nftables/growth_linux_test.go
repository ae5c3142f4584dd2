package nftables

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// disturbing makes transactions fail.
type disturbing struct {
	// after is how many transactions succeed before one fails; negative for none.
	after int
	fail  func(ctx context.Context, commit func(context.Context) error) error
	// failed counts the transactions that failed.
	failed int
}

func (d *disturbing) around(transact func(context.Context, *nfnetlink.Batch) error) func(context.Context, *nfnetlink.Batch) error {
	return func(ctx context.Context, b *nfnetlink.Batch) error {
		commit := func(ctx context.Context) error { return transact(ctx, b) }
		d.after--
		if d.after != -1 {
			return commit(ctx)
		}
		d.failed++
		return d.fail(ctx, commit)
	}
}

// faults are ways in which a transaction fails.
func (d *disturbing) faults(flush func()) []func(context.Context, func(context.Context) error) error {
	refused := func(errno unix.Errno) func(context.Context, func(context.Context) error) error {
		return func(context.Context, func(context.Context) error) error {
			return &nfnetlink.Error{Errno: errno, Op: "add element", Message: -1}
		}
	}
	return []func(context.Context, func(context.Context) error) error{
		refused(unix.ENOMEM), refused(unix.ENOBUFS), refused(unix.EEXIST), refused(unix.EBUSY), refused(unix.ENFILE), refused(unix.EINVAL),
		func(_ context.Context, commit func(context.Context) error) error {
			if err := commit(context.Background()); err != nil {
				return err
			}
			return nfnetlink.ErrUnknownOutcome
		},
		func(ctx context.Context, commit func(context.Context) error) error {
			flush()
			return commit(ctx)
		},
		func(ctx context.Context, commit func(context.Context) error) error {
			err := commit(ctx)
			flush()
			return err
		},
		func(context.Context, func(context.Context) error) error { return context.DeadlineExceeded },
	}
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
	s, d := newStage(t, Options{}), &disturbing{after: -1}
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
				k.transact = d.around(k.transact)
				b = backends.New(k.book.render, k)
				return nil
			})
			return b, err
		},
		Fault: func(r *rand.Rand, on bool) {
			d.after = -1
			if on {
				faults := d.faults(func() { s.nft(t, "flush ruleset") })
				d.after, d.fail = r.IntN(4), faults[r.IntN(len(faults))]
			}
		},
		Dump: func() string { return s.dump(t) },
		Fresh: func(want proxy.Snapshot) string {
			fresh := newStage(t, Options{})
			fresh.Apply(t, want)
			return fresh.dump(t)
		},
	}
	g.Run(t, r)
	if d.failed == 0 {
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
