package xtables_test

import (
	"fmt"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/xtables"
)

// A chain and a jump to it, as input for iptables-restore.
func ExampleScript() {
	chain := xtables.Prefix("vipkit") + "POSTROUTING"
	fmt.Print(xtables.Script([]xtables.Op{
		{
			Kind:  backends.Add,
			Key:   xtables.Key{Table: xtables.NAT, Chain: chain},
			Value: xtables.Lines([]string{"-m connmark --mark 0x4000/0x4000 -j MASQUERADE --random-fully"}),
		},
		{Kind: backends.Add, Key: xtables.Key{Table: xtables.NAT, Chain: "POSTROUTING", Rule: "-j " + chain}},
	}))
	// Output:
	// *nat
	// :VIPKIT-POSTROUTING - [0:0]
	// -A VIPKIT-POSTROUTING -m connmark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
	// -I POSTROUTING -j VIPKIT-POSTROUTING
	// COMMIT
}
