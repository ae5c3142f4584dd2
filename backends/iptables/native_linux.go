package iptables

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// native reads the tables of the flavour nft from nf_tables itself. Others can put
// rules there that iptables cannot print, or prints as if they did something else: it
// leaves out what it does not know. Such rules cannot be compared or removed as text.
type native struct {
	conn   *nfnetlink.Conn
	family nfnetlink.Family
	names  names
}

func nativeFamily(f v1.IPFamily) nfnetlink.Family {
	if f == v1.IPv6Protocol {
		return nfnetlink.IPv6
	}
	return nfnetlink.IPv4
}

func (n *native) table(t table) nfnetlink.Table {
	return nfnetlink.Table{Family: n.family, Name: t.String()}
}

// mend has dormant tables see packets again, and removes base chains that stand in the
// place of the kernel's own, or have names of ours, and that iptables cannot use. It gives
// what there is then, and reports whether that took a commit.
func (n *native) mend(ctx context.Context) (p picture, committed bool, err error) {
	p.hooks, p.own = map[chainRef][]nativeRule{}, map[chainRef]bool{}
	var b nfnetlink.Batch
	var tables []nfnetlink.TableInfo
	if err := n.conn.Tables(ctx, n.family, nfnetlink.Collect(&tables)); err != nil {
		return p, false, err
	}
	for _, info := range tables {
		t, isUsed := tableNamed(info.Name)
		if !isUsed {
			continue
		}
		if info.Flags&dormant != 0 {
			b.WakeTable(n.table(t))
		}
		if err := n.readRules(ctx, t, &p); err != nil {
			return p, false, err
		}
		if err := n.mendChains(ctx, t, &b, &p); err != nil {
			return p, false, err
		}
	}
	if b.Empty() {
		return p, false, nil
	}
	return p, true, n.conn.Commit(ctx, &b)
}

const dormant = 1 // NFT_TABLE_F_DORMANT

// readRules adds the rules of a table.
func (n *native) readRules(ctx context.Context, t table, p *picture) error {
	return n.conn.Rules(ctx, n.table(t), nfnetlink.Visitor[nfnetlink.RuleInfo]{
		Begin: func() { p.forget(t) },
		Each: func(r *nfnetlink.RuleInfo) error {
			ref := chainRef{t, r.Chain}
			switch {
			case isHook(r.Chain):
				seen := n.look(r)
				p.hooks[ref] = append(p.hooks[ref], nativeRule{r.Handle, seen.isOdd, n.names.owns(t, seen.leads())})
			case n.names.owns(t, r.Chain):
				p.own[ref] = p.own[ref] || n.look(r).isOdd
			}
			return nil
		},
	})
}

// mendChains adds the chains of a table, and has those removed that iptables cannot use.
func (n *native) mendChains(ctx context.Context, t table, b *nfnetlink.Batch, p *picture) error {
	var chains []nfnetlink.ChainInfo
	if err := n.conn.Chains(ctx, n.table(t), nfnetlink.Collect(&chains)); err != nil {
		return err
	}
	for i := range chains {
		c := &chains[i]
		ref := chainRef{t, c.Name}
		isOwn := n.names.owns(t, c.Name)
		switch _, isKnown := p.own[ref]; {
		case isOwn && c.Base.Type == "":
			if !isKnown { // it has no rules
				p.own[ref] = false
			}
			continue
		case !isOwn && (!isHook(c.Name) || isHookOf(t, c)):
			continue
		case slices.ContainsFunc(p.hooks[ref], func(r nativeRule) bool { return !r.isOwn }):
			return fmt.Errorf("chain %s of table %v is none that iptables can use, and others have rules there: remove them, or the chain; nft list chain %v %s shows it",
				c.Name, n.table(t), n.table(t), c.Name)
		}
		b.FlushChain(n.table(t), c.Name)
		b.DelChain(n.table(t), c.Name)
		delete(p.hooks, ref)
		delete(p.own, ref)
	}
	return nil
}

// isHookOf reports whether a chain is the one that iptables makes by this name.
func isHookOf(t table, c *nfnetlink.ChainInfo) bool {
	want := nfnetlink.BaseChain{Type: t.String()}
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
	if t == filter {
		want.Priority = 0
	}
	want.Drop = c.Base.Drop
	return c.Base == want
}

// removeJumps removes jumps to our chains, and reports whether that took a commit.
func (n *native) removeJumps(ctx context.Context, p *picture) (committed bool, err error) {
	var b nfnetlink.Batch
	for ref, rules := range p.hooks {
		for _, r := range rules {
			if r.isOwn {
				b.DelRule(n.table(ref.table), ref.name, r.handle)
			}
		}
	}
	if b.Empty() {
		return false, nil
	}
	return true, n.conn.Commit(ctx, &b)
}
