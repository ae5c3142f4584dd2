package xtables

import (
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Own jumps in nf_tables are those by the text of iptables: rules that other programs added to lead to the
// Services stay where iptables cannot list the table.
func TestOwnNativeJumps(t *testing.T) {
	t.Parallel()
	s := newStage(t, config(NFT))
	n := &native{family: nfnetlink.IPv4, names: newNames()}
	testenv.NoError(t, s.NS.Do(func() (err error) { n.conn, err = nfnetlink.Open(); return err }))
	t.Cleanup(func() { _ = n.conn.Close() }) // nothing was written
	for rule, want := range map[string]bool{
		`-j VIPKIT-SERVICES`: true,
		`-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j VIPKIT-SERVICES`: true,
		`-p tcp -m comment --comment "kubernetes service portals (VIPKIT)" -j VIPKIT-SERVICES`:            true,
		`-m comment --comment "kubernetes \"a\" \\" -j VIPKIT-SERVICES`:                                   true,
		`-m comment --comment "my fw" -j VIPKIT-SERVICES`:                                                 false,
		`-m comment --comment "kubernetes\" x" -j VIPKIT-SERVICES`:                                        false,
		`-m comment --comment "kubernetes service portals" -g VIPKIT-SERVICES`:                            false,
		`-g VIPKIT-SERVICES`:                              false,
		`-m addrtype --dst-type LOCAL -j VIPKIT-SERVICES`: false,
		`-s 192.0.2.1/32 -j VIPKIT-SERVICES`:              false,
	} {
		s.run(t, "*nat\n:VIPKIT-SERVICES - [0:0]\n-F OUTPUT\n-A OUTPUT "+rule+"\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		e, err := n.find(t.Context())
		testenv.NoError(t, err)
		own, used := len(e.handles[chainRef{NAT, "OUTPUT"}]), e.used[chainRef{NAT, "VIPKIT-SERVICES"}]
		if (own == 1) != want || used == want {
			t.Errorf("%s: got %d own jumps, a chain in use by others %t; want own %t", rule, own, used, want)
		}
	}
}
