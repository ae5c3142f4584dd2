package nft_test

import (
	"fmt"

	"github.com/google/nftables/expr"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
)

// This chain drops packets that arrive from a bridge with a source that is local to the
// node.
func Example() {
	chain := nft.Chain{Rules: func(a *nft.Assembler) {
		a.Rule(a.Interface(expr.MetaKeyIIFNAME, "cni0", expr.CmpOpEq), a.SourceIsLocal(), a.Drop())
		a.Rule(a.Return())
	}}
	var batch nfnetlink.Batch
	table := nfnetlink.Table{Family: nfnetlink.IPv4, Name: "example"}
	add := nft.ChainOp{Kind: backends.Add, Name: "guard", Hash: chain.Hash(nfnetlink.IPv4), Chain: &chain}
	written, err := add.Write(&batch, table)
	fmt.Println(written, "objects in a batch:", err)
	// Output: 3 objects in a batch: <nil>
}
