package xtables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// native reads the tables of the flavour nft from nf_tables itself. Other programs can add
// rules that iptables cannot print, or prints without the parts that it does not know. Such
// rules cannot be compared or removed as text.
type native struct {
	conn   *nfnetlink.Conn
	family nfnetlink.Family
	names  Names
}

func (n *native) table(t Table) nfnetlink.Table {
	return nfnetlink.Table{Family: n.family, Name: t.String()}
}

// repair wakes dormant tables, removes base chains that iptables cannot use and that have the
// names of the kernel's own chains, or of the identity's, and removes rules that iptables
// cannot print from the identity's chains. It does so before anything is added, because the
// kernel refuses each jump to a chain with a rule that is invalid in the hook of the jump.
// repair returns the resulting ruleset, and how many repairs it has committed.
func (n *native) repair(ctx context.Context) (p ruleset, repairs uint64, err error) {
	p.hooks, p.own = map[chainRef][]nativeRule{}, map[chainRef][]uint64{}
	var b nfnetlink.Batch
	var tables []nfnetlink.TableInfo
	if err := n.conn.Tables(ctx, n.family, nfnetlink.Collect(&tables)); err != nil {
		return p, 0, err
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
		if err := n.readRules(ctx, t, &p); err != nil {
			return p, 0, err
		}
		repaired, err := n.repairChains(ctx, t, &b, &p)
		if err != nil {
			return p, 0, err
		}
		repairs += repaired
	}
	if repairs == 0 {
		return p, 0, nil
	}
	return p, repairs, explainBusy(n.conn.Commit(ctx, &b))
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

// readRules adds the rules of a table.
func (n *native) readRules(ctx context.Context, t Table, p *ruleset) error {
	return n.conn.Rules(ctx, n.table(t), nfnetlink.Visitor[nfnetlink.RuleInfo]{
		Begin: func() { p.dropTable(t) },
		Each: func(r *nfnetlink.RuleInfo) error {
			ref := chainRef{t, r.Chain}
			switch {
			case isHook(r.Chain):
				seen := n.readRule(r)
				p.hooks[ref] = append(p.hooks[ref], nativeRule{r.Handle, seen.isUnprintable, seen.isOwn(t)})
			case n.names.Owns(t, r.Chain) && n.readRule(r).isUnprintable:
				p.own[ref] = append(p.own[ref], r.Handle)
			}
			return nil
		},
	})
}

// repairChains adds the chains of a table to p, and to b the removal of those that iptables
// cannot use, and of rules of the identity's chains that iptables cannot print.
func (n *native) repairChains(ctx context.Context, t Table, b *nfnetlink.Batch, p *ruleset) (repairs uint64, err error) {
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
			for _, handle := range p.own[ref] {
				b.DelRule(n.table(t), c.Name, handle)
				repairs++
			}
			p.own[ref] = nil // also of a chain without such rules
			continue
		case !isOwn && (!isHook(c.Name) || isHookOf(t, c)):
			continue
		case slices.ContainsFunc(p.hooks[ref], func(r nativeRule) bool { return !r.isOwn }):
			return 0, fmt.Errorf("iptables cannot use chain %s of table %v, and it has rules of other programs: remove these, or the chain; nft list chain %v %s shows them",
				c.Name, n.table(t), n.table(t), c.Name)
		}
		b.FlushChain(n.table(t), c.Name)
		b.DelChain(n.table(t), c.Name)
		delete(p.hooks, ref)
		delete(p.own, ref)
		repairs++
	}
	return repairs, nil
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

// removeJumps removes jumps to chains of the identity.
func (n *native) removeJumps(ctx context.Context, p *ruleset) error {
	var b nfnetlink.Batch
	for ref, rules := range p.hooks {
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
