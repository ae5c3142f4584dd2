package userspace_test

import (
	"fmt"
	"testing"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A backend gets from any number of Services and endpoints to any other, whatever else changes and
// whatever fails in between, also if a change needs several transactions.
func TestGrowth(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		for _, maxBatch := range []int{0, 12 << 10} {
			t.Run(fmt.Sprint("batches of ", maxBatch), func(t *testing.T) { testGrowth(t, userspace.Options{Capture: c}, maxBatch) })
		}
	})
}

func testGrowth(t *testing.T, o userspace.Options, maxBatch int) {
	n := network{Lab: lab.New(t, lab.Host{Name: "node"})}
	flushes := 0
	d := stagetest.DisturbNFT(func() {
		// All is removed, or a table of another program must be replaced.
		n.nft(t, []string{"flush ruleset", "add table ip vipkit-userspace { flags dormant; }"}[flushes%2])
		flushes++
	})
	var processes testenv.Succession
	start := func(ns *netns.NS, d *stagetest.Disturbance) (b proxy.Backend, err error) {
		err = ns.Do(func() error {
			b = testenv.Next(t, &processes, func() (*userspace.Backend, error) { return userspace.NewDisturbed(o, d, maxBatch) })
			return nil
		})
		return b, err
	}
	g := stagetest.Growth{
		Sizes: stagetest.SizesAround(8, 40, 100), Steps: 100,
		New:   func() (proxy.Backend, error) { return start(n.node(), d) },
		Fault: d.Set,
		Dump:  func() string { return n.dump(t, o.Capture) },
		Fresh: func(want proxy.Snapshot) string {
			fresh := network{Lab: lab.New(t, lab.Host{Name: "node"})}
			apply(t, fresh.start(t, o), want)
			return fresh.dump(t, o.Capture)
		},
	}
	g.Run(t, testenv.Random(t))
	if d.Met == 0 {
		t.Error("faults: got none, want some for a meaningful test")
	}
	g.RunRefusals(t, d)
}
