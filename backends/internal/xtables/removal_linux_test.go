package xtables

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// A chain that a rule of another program jumps to stays. Chains of other tables go, and are not named.
func TestRemovalsOfSeveralTables(t *testing.T) {
	t.Parallel()
	for _, flavour := range []Flavour{Legacy, NFT} {
		t.Run(string(flavour), func(t *testing.T) {
			s := newStage(t, config(flavour))
			var ops []Op
			for _, table := range []Table{NAT, Filter} {
				for _, chain := range []string{"VIPKIT-A", "VIPKIT-B"} {
					s.run(t, "", "iptables", "-w", "5", "-t", table.String(), "-N", chain)
					ops = append(ops, Op{Kind: backends.Remove, Key: Key{Table: table, Chain: chain}})
				}
			}
			s.run(t, "", "iptables", "-w", "5", "-t", "filter", "-A", "FORWARD", "-j", "VIPKIT-B")
			testenv.NoError(t, s.NS.Do(func() error {
				at, err := netns.Current(unix.NETLINK_ROUTE)
				if err != nil {
					return err
				}
				b := &Backend{}
				c := s.Options
				kernels, err := b.open(&c, at)
				if err != nil {
					return err
				}
				testenv.CloseAtEnd(t, b)
				testenv.CloseAtEnd(t, at)
				kept, err := kernels[0].removeChains(t.Context(), ops)
				if len(kept) != 1 || !strings.HasPrefix(kept[0], "VIPKIT-B ") {
					t.Errorf("chains that stay: got %q, want only VIPKIT-B of table filter", kept)
				}
				return err
			}))
			if got := s.run(t, "", "iptables-save"); strings.Contains(got, ":VIPKIT-A") || strings.Count(got, ":VIPKIT-B") != 1 {
				t.Errorf("rules: got\n%s\nwant of own chains only VIPKIT-B", got)
			}
		})
	}
}
