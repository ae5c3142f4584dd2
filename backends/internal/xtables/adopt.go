package xtables

import (
	"slices"

	"github.com/vipkit/vipkit/backends"
)

// content is what a chain must have.
type content struct {
	isOpen bool
	// fixed are the rules of a chain that is not open. front and back are the rules of an open chain.
	fixed       string
	front, back []string
}

// contents returns the contents of chains by the objects that are wanted.
func contents(n Names, wanted map[Key]string) map[chainRef]*content {
	all := map[chainRef]*content{}
	for k, value := range wanted {
		ref := chainRef{k.Table, k.Chain}
		c := all[ref]
		if c == nil {
			c = &content{isOpen: n.IsOpen(ref.name)}
			all[ref] = c
		}
		switch {
		case k.Rule == "":
			c.fixed = value
		case k.Back:
			c.back = append(c.back, k.Rule)
		default:
			c.front = append(c.front, k.Rule)
		}
	}
	for _, c := range all {
		slices.Sort(c.front)
		slices.Sort(c.back)
	}
	return all
}

// text returns the rules of the chain in normal form: sorted within the front and within the back
// of an open chain, where the order means nothing. It adds some of the found rules in between:
// those that are not wanted.
func (c *content) text(found []string) string {
	if !c.isOpen {
		return c.fixed
	}
	isWanted := make(map[string]bool, len(c.front)+len(c.back))
	for _, rule := range slices.Concat(c.front, c.back) {
		isWanted[rule] = true
	}
	others := slices.DeleteFunc(slices.Clone(found), func(rule string) bool { return isWanted[rule] })
	return Lines(slices.Concat(c.front, others, c.back))
}

// normal returns the found rules of the chain in normal form.
func (c *content) normal(found []string) string {
	if !c.isOpen {
		return Lines(found)
	}
	rules := slices.Clone(found)
	front := max(0, len(rules)-len(c.back))
	slices.Sort(rules[:front])
	slices.Sort(rules[front:])
	return Lines(rules)
}

// plan has the operations that make what exists what is wanted.
type plan struct {
	existing *existing
	// keep says that own rules stay which are not wanted, because more will be wanted.
	keep bool
	ops  []Op
	// unwanted are the chains that ops empty.
	unwanted []chainRef
}

// removals returns the removals of unwanted chains, and the names of those that stay, because rules of
// other programs lead to them.
func (p *plan) removals() (ops []Op, kept []string) {
	for _, ref := range p.unwanted {
		if p.existing.referred[ref] {
			kept = append(kept, ref.name)
		} else {
			ops = append(ops, Op{Kind: backends.Remove, Key: Key{Table: ref.table, Chain: ref.name}})
		}
	}
	return ops, kept
}

// adopt plans how to make chains and jumps the wanted ones. It compares each chain as text and
// rewrites those that differ.
func (e *existing) adopt(n Names, wanted map[Key]string, keep bool) *plan {
	p := &plan{existing: e, keep: keep}
	all := contents(n, wanted)
	for ref, c := range all {
		if !isHook(ref.name) {
			p.chain(ref, c)
		}
	}
	for ref := range e.chains {
		if all[ref] == nil {
			p.unwantedChain(ref)
		}
	}
	for ref := range e.jumps {
		if all[ref] == nil {
			all[ref] = &content{}
		}
	}
	for ref, c := range all {
		if isHook(ref.name) || e.jumps[ref] != nil {
			p.jumps(ref, slices.Concat(c.front, c.back))
		}
	}
	return p
}

// chain adds what makes a chain have its content. What it refuses in addition, by rules of table
// filter that are no longer wanted, it refuses until all tables have been written.
func (p *plan) chain(ref chainRef, c *content) {
	found, exists := p.existing.chains[ref]
	is, want := c.normal(found), c.text(nil)
	switch {
	case !exists:
		p.ops = append(p.ops, Op{Kind: backends.Add, Key: Key{Table: ref.table, Chain: ref.name}, Value: want})
		return
	case is == want && p.existing.knows(ref):
		return
	}
	both := c.text(p.existing.own(ref, found))
	if p.keep {
		want = both
	}
	p.put(ref, is, both, want)
}

// unwantedChain adds what empties a chain, or what removes only rules of other programs from it: the
// kernel refuses each jump to a chain with a rule that is invalid in the hook of the jump.
func (p *plan) unwantedChain(ref chainRef) {
	found := p.existing.chains[ref]
	own := Lines(p.existing.own(ref, found))
	if p.keep {
		if p.existing.knows(ref) { // Rules that are not known cannot be written again, and are wanted soon.
			p.put(ref, Lines(found), own, own)
		}
		return
	}
	p.put(ref, Lines(found), own, "")
	p.unwanted = append(p.unwanted, ref)
}

// put adds what writes a chain, unless it is as wanted. A chain of table filter is before while other
// tables are written.
func (p *plan) put(ref chainRef, is, before, want string) {
	write := func(value string, back bool) {
		p.ops = append(p.ops, Op{Kind: backends.Replace, Key: Key{Table: ref.table, Chain: ref.name, Back: back}, Value: value})
	}
	known := p.existing.knows(ref)
	switch {
	case known && is == want:
	case ref.table != Filter || before == want:
		write(want, false)
	case is != before:
		write(before, false)
		fallthrough
	default:
		write(want, true)
	}
}

// jumps adds what makes a chain of the kernel, or of another program, have the wanted own rules. If
// these differ, all of them are removed and added again, at the front.
func (p *plan) jumps(ref chainRef, want []string) {
	e := p.existing
	found := slices.Sorted(slices.Values(e.jumps[ref]))
	switch {
	case p.keep && len(want) == 0, slices.Equal(found, want) && !e.late[ref]:
		return
	case len(want) == 0:
		for _, rule := range found {
			p.ops = append(p.ops, Op{Kind: backends.Remove, Key: Key{Table: ref.table, Chain: ref.name, Rule: rule}})
		}
	}
	for i, rule := range want {
		o := Op{Kind: backends.Add, Key: Key{Table: ref.table, Chain: ref.name, Rule: rule}}
		if i == 0 && len(found) > 0 {
			o.Kind, o.Value = backends.Replace, Lines(found)
		}
		p.ops = append(p.ops, o)
	}
}

// existing is what an identity has in the tables of a family.
type existing struct {
	// chains are the chains of the identity, and those that lost its names.
	chains saved
	// jumps are own rules in other chains.
	jumps saved
	// late are chains in which an own jump follows a rule that ends the traversal of all packets.
	late map[chainRef]bool
	// referred are chains of the identity to which rules of other programs lead.
	referred map[chainRef]bool
	// isUnprintable is true if iptables cannot print the tables: neither the rules of chains nor the
	// texts of jumps are known.
	isUnprintable bool
	knowledge
}

// knowledge is what is known of the tables of a family beside what iptables prints.
type knowledge struct {
	// isForeign reports whether another program wrote a rule of an own chain.
	isForeign func(t Table, rule string) bool
	// misread are chains of the identity with rules that iptables prints wrongly or not at all, and
	// hooks are the rules of the kernel's own chains, in order. Both are for the flavour nft.
	misread map[chainRef]bool
	hooks   map[chainRef][]hookRule
}

// hookRule is a rule of one of the kernel's own chains, as nf_tables lists it.
type hookRule struct {
	handle              uint64
	isOwn, isMisprinted bool
}

// knows reports whether the rules of a chain are known.
func (e *existing) knows(ref chainRef) bool { return !e.isUnprintable && !e.misread[ref] }

// own returns the rules of a chain without the rules of other programs, as far as these are known.
func (e *existing) own(ref chainRef, rules []string) []string {
	if !e.knows(ref) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(rules), func(rule string) bool { return e.isForeign(ref.table, rule) })
}

// chainRef identifies a chain of a table.
type chainRef struct {
	table Table
	name  string
}

// saved has the rules of chains, in order.
type saved map[chainRef][]string

func isHook(chain string) bool {
	switch chain {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}
