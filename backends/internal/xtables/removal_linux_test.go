package xtables

import (
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// A chain that a rule of another program jumps to stays. Chains of other tables go, and are not named.
func TestRemovalsOfSeveralTables(t *testing.T) {
	t.Parallel()
	for _, flavour := range []Flavour{Legacy, NFT} {
		t.Run(string(flavour), func(t *testing.T) {
			s := newStage(t, config(flavour))
			var chains []chainRef
			for _, table := range []Table{NAT, Filter} {
				for _, chain := range []string{"VIPKIT-A", "VIPKIT-B"} {
					s.run(t, "", "iptables", "-w", "5", "-t", table.String(), "-N", chain)
					chains = append(chains, chainRef{table, chain})
				}
			}
			s.run(t, "", "iptables", "-w", "5", "-t", "filter", "-A", "FORWARD", "-j", "VIPKIT-B")
			testenv.NoError(t, s.NS.Do(func() error {
				b, err := New(s.Options)
				if err != nil {
					return err
				}
				testenv.CloseAtEnd(t, b)
				kept, err := b.kernels[0].removeChains(t.Context(), chains)
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
