package xtables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// native reads the tables of the flavour nft from nf_tables itself, as far as iptables cannot tell:
// other programs can add rules that iptables does not print, or prints without the parts that it does
// not know, and chains that it cannot use.
type native struct {
	conn   *nfnetlink.Conn
	family nfnetlink.Family
	names  Names
}

func (n *native) table(t Table) nfnetlink.Table {
	return nfnetlink.Table{Family: n.family, Name: t.String()}
}

// repair wakes dormant tables, and removes base chains that iptables cannot use and that have the
// names of the kernel's own chains, or of the identity's. It returns the chains of the identity and
// what is misprinted, and how many repairs it has committed.
func (n *native) repair(ctx context.Context) (chains saved, u knowledge, repairs uint64, err error) {
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
			repairs++
		}
		if err := n.readRules(ctx, t, &u); err != nil {
			return nil, u, 0, err
		}
		removed, err := n.readChains(ctx, t, &b, chains, &u)
		if err != nil {
			return nil, u, 0, err
		}
		repairs += removed
	}
	if repairs == 0 {
		return chains, u, 0, nil
	}
	return chains, u, repairs, explainBusy(n.conn.Commit(ctx, &b))
}

// explainBusy says what to do about a chain that iptables cannot use, and that the kernel does not
// remove because something refers to it.
func explainBusy(err error) error {
	refused, is := errors.AsType[*nfnetlink.Error](err)
	if !is || refused.Errno != unix.EBUSY {
		return err
	}
	return fmt.Errorf("%w: iptables cannot use this chain, and rules or maps of other programs refer to it: remove these; nft list table %v shows them",
		err, refused.Table)
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

// readChains adds the chains of a table to own, and to b the removal of those that iptables cannot use.
func (n *native) readChains(ctx context.Context, t Table, b *nfnetlink.Batch, own saved, u *knowledge) (removed uint64, err error) {
	var chains []nfnetlink.Chain
	if err := n.conn.Chains(ctx, n.table(t), nfnetlink.Collect(&chains)); err != nil {
		return 0, err
	}
	for i := range chains {
		c := &chains[i]
		ref := chainRef{t, c.Name}
		isOwn := n.names.Owns(t, c.Name)
		switch {
		case isOwn && c.Base.Type == "":
			own[ref] = nil
			continue
		case !isOwn && (!isHook(c.Name) || isHookOf(t, c)):
			continue
		case slices.ContainsFunc(u.hooks[ref], func(r hookRule) bool { return !r.isOwn }):
			return 0, fmt.Errorf("iptables cannot use chain %s of table %v, and it has rules of other programs: remove these, or the chain; nft list chain %v %s shows them",
				c.Name, n.table(t), n.table(t), c.Name)
		}
		b.FlushChain(n.table(t), c.Name)
		b.DelChain(n.table(t), c.Name)
		delete(u.hooks, ref)
		delete(u.misread, ref)
		removed++
	}
	return removed, nil
}

// isHookOf reports whether a chain is as iptables makes the one of this name.
func isHookOf(t Table, c *nfnetlink.Chain) bool {
	want := nfnetlink.BaseChain{Type: "filter"}
	switch c.Name {
	case "PREROUTING":
		want.Hook, want.Priority = nfnetlink.Prerouting, -100
	case "INPUT":
		want.Hook, want.Priority = nfnetlink.Input, 100
	case "FORWARD":
		want.Hook = nfnetlink.Forward
	case "OUTPUT":
		want.Hook, want.Priority = nfnetlink.Output, -100
	case "POSTROUTING":
		want.Hook, want.Priority = nfnetlink.Postrouting, 100
	}
	switch {
	case t == NAT:
		want.Type = "nat"
	case t == Filter:
		want.Priority = 0
	case c.Name == "OUTPUT":
		want.Type, want.Priority = "route", -150
	default:
		want.Priority = -150
	}
	want.Drop = c.Base.Drop
	return c.Base == want
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
