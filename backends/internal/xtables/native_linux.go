package xtables

import (
	"context"
	"maps"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// native reads the tables of the flavour nft from nf_tables itself, as far as iptables cannot tell:
// other programs can add rules that iptables does not print, or prints without the parts that it does
// not know.
type native struct {
	conn   *nfnetlink.Conn
	family nfnetlink.Family
	names  Names
}

func (n *native) table(t Table) nfnetlink.Table {
	return nfnetlink.Table{Family: n.family, Name: t.String()}
}

// read returns the chains of the identity and what is misprinted. It wakes dormant tables, and returns how
// many.
func (n *native) read(ctx context.Context) (chains saved, u knowledge, woken uint64, err error) {
	chains, u = saved{}, knowledge{misread: map[chainRef]bool{}, hooks: map[chainRef][]hookRule{}}
	var b nfnetlink.Batch
	var tables []nfnetlink.TableInfo
	if err := n.conn.Tables(ctx, n.family, nfnetlink.Collect(&tables)); err != nil {
		return nil, u, 0, err
	}
	for _, info := range tables {
		t, isUsed := n.names.tableNamed(info.Name)
		if !isUsed {
			continue
		}
		if info.IsDormant() {
			b.WakeTable(n.table(t))
			woken++
		}
		if err := n.readRules(ctx, t, &u); err != nil {
			return nil, u, 0, err
		}
		own, err := ownChains(ctx, n.conn, n.table(t), func(chain string) bool { return n.names.Owns(t, chain) })
		if err != nil {
			return nil, u, 0, err
		}
		for name := range own {
			chains[chainRef{t, name}] = nil
		}
	}
	if woken > 0 {
		err = n.conn.Commit(ctx, &b)
	}
	return chains, u, woken, err
}

// readRules reads the rules of a table.
func (n *native) readRules(ctx context.Context, t Table, u *knowledge) error {
	return n.conn.Rules(ctx, n.table(t), nfnetlink.Visitor[nfnetlink.RuleInfo]{
		Begin: func() {
			maps.DeleteFunc(u.misread, func(ref chainRef, _ bool) bool { return ref.table == t })
			maps.DeleteFunc(u.hooks, func(ref chainRef, _ []hookRule) bool { return ref.table == t })
		},
		Each: func(r *nfnetlink.RuleInfo) error {
			ref := chainRef{t, r.Chain}
			switch {
			case isHook(r.Chain):
				rule := n.readRule(r)
				u.hooks[ref] = append(u.hooks[ref], hookRule{r.Handle, rule.isOwn(t), rule.isMisprinted})
			case n.names.Owns(t, r.Chain) && n.readRule(r).isMisprinted:
				u.misread[ref] = true
			}
			return nil
		},
	})
}

// removeJumps removes own jumps from the kernel's own chains.
func (n *native) removeJumps(ctx context.Context, hooks map[chainRef][]hookRule) error {
	var b nfnetlink.Batch
	for ref, rules := range hooks {
		for _, r := range rules {
			if r.isOwn {
				b.DelRule(n.table(ref.table), ref.name, r.handle)
			}
		}
	}
	if b.Empty() {
		return nil
	}
	return n.conn.Commit(ctx, &b)
}
