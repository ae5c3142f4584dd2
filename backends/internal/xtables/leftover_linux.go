package xtables

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// RemoveNFT removes the chains of a consumer that has ended, in the flavour nft and both IP families,
// in one transaction, with all rules that lead to them. It needs no program. Without such chains it
// writes nothing.
func RemoveNFT(ctx context.Context, conn *nfnetlink.Conn, names Names) error {
	var b nfnetlink.Batch
	for _, family := range [...]nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6} {
		for _, t := range names.tables() {
			if err := names.addRemovals(ctx, conn, &b, nfnetlink.Table{Family: family, Name: t.String()}, t); err != nil {
				return err
			}
		}
	}
	return conn.Commit(ctx, &b)
}

// addRemovals adds the removals of the chains in a table, after the removals of rules that lead to them.
func (n Names) addRemovals(ctx context.Context, conn *nfnetlink.Conn, b *nfnetlink.Batch, table nfnetlink.Table, t Table) error {
	exists, err := n.existIn(ctx, conn, table, t)
	if err != nil || !exists {
		return err
	}
	found, err := ownChains(ctx, conn, table, func(chain string) bool { return n.Owns(t, chain) })
	if err != nil {
		return err
	}
	rules, err := rulesTo(ctx, conn, table, found)
	for _, r := range rules {
		b.DelRule(table, r.Chain, r.Handle)
	}
	for chain := range found {
		b.FlushChain(table, chain)
	}
	for chain := range found {
		b.DelChain(table, chain)
	}
	return err
}

// existIn reports whether a table has one of the chains that exist whatever the service ports are. Unlike
// a list of the chains, that is known also while other programs commit all the time.
func (n Names) existIn(ctx context.Context, conn *nfnetlink.Conn, table nfnetlink.Table, t Table) (bool, error) {
	for _, chain := range n.Chains[t] {
		_, err := conn.Chain(ctx, table, n.Prefix+chain)
		if !errors.Is(err, unix.ENOENT) {
			return err == nil, err
		}
	}
	return false, nil
}

// ownChains returns the names of chains of a table.
func ownChains(ctx context.Context, conn *nfnetlink.Conn, t nfnetlink.Table, owns func(chain string) bool) (map[string]bool, error) {
	var chains []nfnetlink.Chain
	err := conn.Chains(ctx, t, nfnetlink.Collect(&chains))
	own := map[string]bool{}
	for i := range chains {
		if owns(chains[i].Name) {
			own[chains[i].Name] = true
		}
	}
	return own, err
}

// rulesTo returns the rules of other chains that lead to some chains.
func rulesTo(ctx context.Context, conn *nfnetlink.Conn, t nfnetlink.Table, chains map[string]bool) (rules []nfnetlink.RuleInfo, err error) {
	err = conn.Rules(ctx, t, nfnetlink.Visitor[nfnetlink.RuleInfo]{
		Begin: func() { rules = nil },
		Each: func(r *nfnetlink.RuleInfo) error {
			for s := range r.Steps() {
				if _, to, ok := s.Verdict(); ok && chains[string(to)] && !chains[r.Chain] {
					rules = append(rules, nfnetlink.RuleInfo{Chain: r.Chain, Handle: r.Handle})
				}
			}
			return nil
		},
	})
	return rules, err
}
