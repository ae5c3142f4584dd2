package netfilter

import (
	"testing"

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
	for redirect, at := range map[bool]int32{false: -140, true: -100} {
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
			got := prioritiesOf(t, c)
			for chain, want := range map[string]int32{
				chainPrerouting: at + priority, chainOutput: at + priority,
				// These stay behind the translating chains of every identity.
				chainUnservedPrerouting: -49, chainUnservedOutput: -49,
			} {
				if got[chain] != want {
					t.Errorf("redirect %t with priority %d: chain %s: got priority %d, want %d", redirect, priority, chain, got[chain], want)
				}
			}
			testenv.NoError(t, c.Close())
		}
	}
}

// prioritiesOf returns the priorities of the base chains of a capture's table.
func prioritiesOf(t *testing.T, c *Capture) map[string]int32 {
	t.Helper()
	var chains []nfnetlink.Chain
	testenv.NoError(t, c.Netlink.Chains(t.Context(), c.table(nfnetlink.IPv6), nfnetlink.Collect(&chains)))
	all := map[string]int32{}
	for i := range chains {
		if chains[i].Base.Type != "" {
			all[chains[i].Name] = chains[i].Base.Priority
		}
	}
	return all
}
