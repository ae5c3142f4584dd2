package main

import (
	"fmt"
	"testing"

	"github.com/google/nftables/expr"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// kernel reads the tables of a network namespace.
type kernel struct {
	t    *testing.T
	conn *nfnetlink.Conn
}

func openKernel(t *testing.T, ns *netns.NS) kernel {
	t.Helper()
	return kernel{t: t, conn: netnstest.Open(t, ns, nfnetlink.Open)}
}

// addTable makes a table with a chain and a rule that counts packets, like another program.
func (k kernel) addTable(name string) {
	k.t.Helper()
	var b nfnetlink.Batch
	table := nfnetlink.Table{Family: nfnetlink.IPv4, Name: name}
	b.AddTable(table)
	b.AddChain(table, nfnetlink.Chain{Name: "prerouting", Base: nfnetlink.BaseChain{Type: "filter", Hook: nfnetlink.Prerouting}})
	rule := nft.Assembler{Family: table.Family}
	b.AddRule(table, "prerouting", rule.Encode(&expr.Counter{}), nfnetlink.AppendTag(nil, []byte("counts")))
	testenv.NoError(k.t, k.conn.Commit(k.t.Context(), &b))
}

// tables returns the names of all tables.
func (k kernel) tables() []string {
	k.t.Helper()
	var names []string
	for _, family := range []nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6} {
		var infos []nfnetlink.TableInfo
		testenv.NoError(k.t, k.conn.Tables(k.t.Context(), family, nfnetlink.Collect(&infos)))
		for _, info := range infos {
			names = append(names, info.Name)
		}
	}
	return names
}

// dump returns the chains and rules of an IPv4 table, with the kernel's handles, which change
// when a rule is added again.
func (k kernel) dump(name string) string {
	k.t.Helper()
	table := nfnetlink.Table{Family: nfnetlink.IPv4, Name: name}
	var chains []nfnetlink.Chain
	var rules []nfnetlink.RuleInfo
	testenv.NoError(k.t, k.conn.Chains(k.t.Context(), table, nfnetlink.Collect(&chains)))
	testenv.NoError(k.t, k.conn.Rules(k.t.Context(), table, nfnetlink.Collect(&rules)))
	out := fmt.Sprintf("chains %+v\n", chains)
	for i := range rules {
		out += fmt.Sprintf("rule %d of %s %q\n", rules[i].Handle, rules[i].Chain, rules[i].Userdata)
	}
	return out
}
