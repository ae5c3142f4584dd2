package netfilter

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Base chains have their hooks and priorities, moved by the priority of the identity. A later
// process with another priority moves them.
func TestHooksOfBaseChains(t *testing.T) {
	t.Parallel()
	for redirect, want := range map[bool]map[string]nfnetlink.BaseChain{
		false: {
			chainPrerouting:  {Type: "filter", Hook: nfnetlink.Prerouting, Priority: -140},
			chainOutput:      {Type: "route", Hook: nfnetlink.Output, Priority: -140},
			chainPostrouting: {Type: "filter", Hook: nfnetlink.Postrouting, Priority: -140},
			chainBridged:     {Type: "nat", Hook: nfnetlink.Prerouting, Priority: -140},
			chainCaptured:    {Type: "nat", Hook: nfnetlink.Output, Priority: -140},
		},
		true: {
			chainPrerouting: {Type: "nat", Hook: nfnetlink.Prerouting, Priority: -100},
			chainOutput:     {Type: "nat", Hook: nfnetlink.Output, Priority: -100},
		},
	} {
		ns := netnstest.NewNS(t)
		for _, priority := range []int32{0, -7} {
			config := testConfig(t)
			config.Identity.Priority, config.Redirect = priority, redirect
			var c *Capture
			if err := ns.Do(func() (err error) {
				c, err = New(config)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			b := backends.New(c.Render, backends.Target[Key, Value](c))
			testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(&proxy.Node{})))
			moved := map[string]nfnetlink.BaseChain{}
			for name, base := range want {
				base.Priority += priority
				moved[name] = base
			}
			kind := "filter"
			if redirect {
				kind = "nat"
			}
			// These stay behind the translating chains of every identity, and where connection tracking needs them.
			moved[chainUnservedPrerouting] = nfnetlink.BaseChain{Type: kind, Hook: nfnetlink.Prerouting, Priority: -49}
			moved[chainUnservedOutput] = nfnetlink.BaseChain{Type: "nat", Hook: nfnetlink.Output, Priority: -49}
			if !redirect {
				moved[chainBorrowing] = nfnetlink.BaseChain{Type: "filter", Hook: nfnetlink.Output, Priority: -250}
				moved[chainBeside] = nfnetlink.BaseChain{Type: "filter", Hook: nfnetlink.Prerouting, Priority: -99}
				moved[chainUnservedFlows] = nfnetlink.BaseChain{Type: "filter", Hook: nfnetlink.Output, Priority: -49}
			}
			if diff := cmp.Diff(moved, basesOf(t, c)); diff != "" {
				t.Errorf("redirect %t with priority %d (-want +got):\n%s", redirect, priority, diff)
			}
			testenv.NoError(t, c.Close())
		}
	}
}

// basesOf returns the base chains of a capture's table.
func basesOf(t *testing.T, c *Capture) map[string]nfnetlink.BaseChain {
	t.Helper()
	var chains []nfnetlink.Chain
	testenv.NoError(t, c.Netlink.Chains(t.Context(), c.table(nfnetlink.IPv6), nfnetlink.Collect(&chains)))
	bases := map[string]nfnetlink.BaseChain{}
	for i := range chains {
		if chains[i].Base.Type != "" {
			bases[chains[i].Name] = chains[i].Base
		}
	}
	return bases
}
