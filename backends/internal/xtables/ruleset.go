package xtables

import "maps"

// nativeRule is a rule of one of the kernel's own chains, as nf_tables lists it.
type nativeRule struct {
	handle uint64
	// isUnprintable is true if iptables prints another rule, or none.
	isUnprintable bool
	// isOwn is true for an own jump, as that of [Names.ownsJump] for text.
	isOwn bool
}

// ruleset has the chains that a backend uses, as nf_tables lists them.
type ruleset struct {
	// hooks are the rules of the kernel's own chains, in order.
	hooks map[chainRef][]nativeRule
	// own are the chains of the identity, with the handles of rules that iptables cannot
	// print, until these rules are removed.
	own map[chainRef][]uint64
}

// dropTable removes the chains of a table from p.
func (p *ruleset) dropTable(t Table) {
	maps.DeleteFunc(p.hooks, func(ref chainRef, _ []nativeRule) bool { return ref.table == t })
	maps.DeleteFunc(p.own, func(ref chainRef, _ []uint64) bool { return ref.table == t })
}

// hidden returns the rules of the kernel's own chains that iptables-save cannot print
// correctly.
func (p *ruleset) hidden() map[chainRef]hiddenRules {
	all := map[chainRef]hiddenRules{}
	for ref, rules := range p.hooks {
		for i := range rules {
			if rules[i].isUnprintable {
				h := all[ref]
				h.count, h.at = len(rules), append(h.at, i)
				all[ref] = h
			}
		}
	}
	return all
}

// unprinted returns the identity's chains if iptables cannot print them. Each has one empty
// rule: no wanted chain has such content.
func (p *ruleset) unprinted() saved {
	found := make(saved, len(p.own))
	for ref := range p.own {
		found[ref] = []string{""}
	}
	return found
}
