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
	// isUnprintable is true if iptables cannot print the tables: neither the rules of chains nor the
	// texts of jumps are known.
	isUnprintable bool
	knowledge
}

// knowledge is what nf_tables says about the tables of a family and iptables does not print.
type knowledge struct {
	// misread are chains of the identity with rules that iptables prints wrongly or not at all, and
	// hooks are the rules of the kernel's own chains, in order.
	misread map[chainRef]bool
	hooks   map[chainRef][]hookRule
}

// hookRule is a rule of one of the kernel's own chains, as nf_tables lists it.
type hookRule struct {
	handle              uint64
	isOwn, isMisprinted bool
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

// knows reports whether the rules of a chain are known.
func (e *existing) knows(ref chainRef) bool { return !e.isUnprintable && !e.misread[ref] }

// scope says which parts of the difference between existing and wanted objects are planned.
type scope uint8

const (
	// gently changes single rules of open chains.
	gently scope = iota
	// rewriting writes each open chain that differs as a whole, before rules lead to it: the kernel
	// refuses jumps to chains with rules of other programs that are invalid in the hook.
	rewriting
	// adding is gently without removals. It empties no open chain.
	adding
)

// ManyRemovals is the maximum number of rules that are removed from a chain one by one, in changes only in
// the flavour that uses nf_tables. There, each takes about 2 ms; for more rules, reading everything
// and writing the whole chain is faster. Additions do not count, because they take far less time.
const ManyRemovals = 128

// plan is the difference between what exists and what is wanted.
type plan struct {
	*existing
	names Names
	scope scope
	ops   []Op
	// unwanted are chains that ops empty.
	unwanted []chainRef
}

// plan returns the operations that make the wanted objects, given as additions, of what exists. It
// compares chains as text.
func (e *existing) plan(n Names, wanted []Op, s scope) (ops []Op, unwanted []chainRef) {
	if len(e.chains)+len(e.jumps) == 0 {
		return wanted, nil
	}
	p := plan{existing: e, names: n, scope: s}
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
	if s != adding {
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
	return !exists || !p.knows(ref) || Lines(found) != o.Value
}

// openChain adds what makes an open chain have the wanted rules: single rules, or the whole chain. A whole
// chain of table filter is written after the other tables, so that packets are rejected by old rules
// until table nat translates them. Missing rules are added before.
func (p *plan) openChain(ref chainRef, wanted []Op) {
	found, exists := p.chains[ref]
	if !exists {
		p.ops = append(p.ops, wanted...)
		return
	}
	added, removed, can := p.singleRules(ref, found, wanted)
	if p.scope == adding || can && (len(added)+len(removed) == 0 || p.scope == gently && len(removed) <= ManyRemovals) {
		p.ops = append(append(p.ops, removed...), added...)
		return
	}
	whole := Op{Kind: backends.Replace, Key: ref.key(), Value: wholeChain(wanted)}
	if p.scope == gently && ref.table == Filter {
		p.ops = append(p.ops, added...)
		whole.Key.Back = true
	}
	p.ops = append(p.ops, whole)
}

// wholeChain returns the value of an open chain that is written at once.
func wholeChain(wanted []Op) string {
	var front, back []string
	for _, o := range wanted {
		if o.Key.Back {
			back = append(back, o.Key.Rule)
		} else if o.Key.Rule != "" {
			front = append(front, o.Key.Rule)
		}
	}
	return Lines(append(front, back...))
}

// singleRules returns the additions and removals of single rules that an open chain needs. They cannot make
// the chain right if its rules are not known, so that all are added, if one exists twice, or if one for the
// front is behind one for the back.
func (p *plan) singleRules(ref chainRef, found []string, wanted []Op) (added, removed []Op, can bool) {
	can = p.knows(ref)
	if !can {
		found = nil
	}
	missing := make(map[string]Op, len(wanted))
	for _, o := range wanted {
		if o.Key.Rule != "" {
			missing[o.Key.Rule] = o
		}
	}
	is, isBack := make(map[string]bool, len(found)), false
	for _, rule := range found {
		o, isWanted := missing[rule]
		switch {
		case is[rule], isWanted && isBack && !o.Key.Back:
			can = false
		case isWanted:
			isBack = o.Key.Back
		case p.scope != adding:
			removed = append(removed, Op{Kind: backends.Remove, Key: Key{Table: ref.table, Chain: ref.name, Rule: rule}})
		}
		delete(missing, rule)
		is[rule] = true
	}
	for _, o := range wanted {
		if _, isMissing := missing[o.Key.Rule]; isMissing {
			added = append(added, o)
		}
	}
	return added, removed, can
}

// jumpsOf adds what makes a chain of the kernel, or of another program, have the wanted own rules. If
// these differ, all of them are removed and added again, at the front.
func (p *plan) jumpsOf(ref chainRef, wanted []Op) {
	var rules []string
	for _, o := range wanted {
		rules = append(rules, o.Key.Rule)
	}
	found := slices.Sorted(slices.Values(p.jumps[ref]))
	if slices.Equal(found, slices.Sorted(slices.Values(rules))) && !p.late[ref] {
		return
	}
	if len(found) > 0 {
		wanted = slices.Clone(wanted)
		wanted[0].Kind, wanted[0].Value = backends.Replace, Lines(found)
	}
	p.ops = append(p.ops, wanted...)
}

// remove adds the removals of unwanted jumps, and what empties unwanted chains. What these refuse, they
// refuse until all tables are written, unless chains are rewritten.
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
		if len(found) > 0 || !p.knows(ref) {
			o := Op{Kind: backends.Replace, Key: ref.key()}
			o.Key.Back = p.scope != rewriting
			p.ops = append(p.ops, o)
		}
	}
}
