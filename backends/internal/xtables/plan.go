package xtables

import (
	"slices"

	"github.com/vipkit/vipkit/backends"
)

// existing is what an identity has in the tables of a family.
type existing struct {
	// chains are the chains of the identity, and jumps its rules in other chains.
	chains, jumps saved
	// late are chains in which an own jump follows a rule that ends the traversal of all packets.
	late map[chainRef]bool
	// used are the chains of the identity to which rules of other programs lead.
	used map[chainRef]bool
	// isUnread is true if iptables does not list the tables as they are. Then the rules of chains are not
	// known, and handles are the own jumps in the kernel's own chains.
	isUnread bool
	handles  map[chainRef][]uint64
}

// chainRef identifies a chain of a table.
type chainRef struct {
	table Table
	name  string
}

func (r chainRef) key() Key { return Key{Table: r.table, Chain: r.name} }

// saved has the rules of chains, in order.
type saved map[chainRef][]string

func isHook(chain string) bool {
	switch chain {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}

// ManyRemovals is the maximum number of rules that a change removes from a chain one by one in the
// flavour that uses nf_tables. There, each takes about 2 ms; for more rules, reading everything
// and writing the whole chain is faster. Additions do not count, because they take far less time.
const ManyRemovals = 128

// plan is the difference between what exists and what is wanted.
type plan struct {
	*existing
	// adds says that nothing is removed and no open chain is emptied.
	adds bool
	ops  []Op
	// unwanted are chains that ops empty.
	unwanted []chainRef
}

// plan returns the operations that make the wanted objects, given as additions, of what exists, and the
// chains that they empty; if adds is set, the operations only add. It compares chains as text, and writes a chain that
// differs as a whole.
func (e *existing) plan(n Names, wanted []Op, adds bool) (ops []Op, unwanted []chainRef) {
	if len(e.chains)+len(e.jumps) == 0 {
		return wanted, nil
	}
	p := plan{existing: e, adds: adds}
	open := map[chainRef][]Op{}
	isWanted := make(map[chainRef]bool, len(wanted))
	for _, o := range wanted {
		ref := chainRef{o.Key.Table, o.Key.Chain}
		isWanted[ref] = true
		if n.IsOpen(ref.name) {
			open[ref] = append(open[ref], o)
		} else if p.differs(ref, &o) {
			p.ops = append(p.ops, o)
		}
	}
	for ref, all := range open {
		if n.Owns(ref.table, ref.name) {
			p.openChain(ref, all)
		} else {
			p.jumpsOf(ref, all)
		}
	}
	if !adds {
		p.remove(isWanted)
	}
	return p.ops, p.unwanted
}

// differs reports whether a chain that is not open has to be written, and makes the operation replace it
// if it exists.
func (p *plan) differs(ref chainRef, o *Op) bool {
	found, exists := p.chains[ref]
	if exists {
		o.Kind = backends.Replace
	}
	return !exists || p.isUnread || Lines(found) != o.Value
}

// openChain adds what makes an open chain have the wanted rules, in any order within its front and within its
// back. A chain of table filter is written after the other tables, so that packets are rejected by
// old rules until table nat translates them. Missing rules are added before.
func (p *plan) openChain(ref chainRef, wanted []Op) {
	found, exists := p.chains[ref]
	if !exists {
		p.ops = append(p.ops, wanted...)
		return
	}
	var front, back []string
	for _, o := range wanted {
		if o.Key.Back {
			back = append(back, o.Key.Rule)
		} else if o.Key.Rule != "" {
			front = append(front, o.Key.Rule)
		}
	}
	if n := len(front); !p.isUnread && len(found) == n+len(back) && haveSame(found[:n], front) && haveSame(found[n:], back) {
		return
	}
	if ref.table == Filter || p.adds {
		p.addMissing(found, wanted)
	}
	if !p.adds {
		whole := Op{Kind: backends.Replace, Key: ref.key(), Value: Lines(append(front, back...))}
		whole.Key.Back = true
		p.ops = append(p.ops, whole)
	}
}

// haveSame reports whether two lists have the same texts, in any order.
func haveSame(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// addMissing adds the wanted rules that an open chain does not have.
func (p *plan) addMissing(found []string, wanted []Op) {
	has := make(map[string]bool, len(found))
	for _, rule := range found {
		has[rule] = true
	}
	for _, o := range wanted {
		if o.Key.Rule != "" && !has[o.Key.Rule] {
			p.ops = append(p.ops, o)
		}
	}
}

// jumpsOf adds what makes a chain of the kernel, or of another program, have the wanted own rules. If
// these differ, all of them are removed and added again, at the front.
func (p *plan) jumpsOf(ref chainRef, wanted []Op) {
	var rules []string
	for _, o := range wanted {
		rules = append(rules, o.Key.Rule)
	}
	found := p.jumps[ref]
	if haveSame(found, rules) && !p.late[ref] && !p.isUnread {
		return
	}
	for i, o := range wanted {
		o.Kind = backends.Replace
		if i == 0 {
			o.Value = Lines(found)
		}
		p.ops = append(p.ops, o)
	}
}

// remove adds the removals of unwanted jumps, and what empties unwanted chains. What these refuse, they
// refuse until all tables are written; but if everything goes, they refuse nothing any more.
func (p *plan) remove(isWanted map[chainRef]bool) {
	for ref, found := range p.jumps {
		if isWanted[ref] {
			continue
		}
		for _, rule := range found {
			p.ops = append(p.ops, Op{Kind: backends.Remove, Key: Key{Table: ref.table, Chain: ref.name, Rule: rule}})
		}
	}
	for ref, found := range p.chains {
		if isWanted[ref] {
			continue
		}
		p.unwanted = append(p.unwanted, ref)
		if len(found) > 0 || p.isUnread {
			o := Op{Kind: backends.Replace, Key: ref.key()}
			o.Key.Back = len(isWanted) > 0
			p.ops = append(p.ops, o)
		}
	}
}
