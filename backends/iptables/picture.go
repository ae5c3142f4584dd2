package iptables

import "maps"

// nativeRule is a rule of one of the kernel's own chains.
type nativeRule struct {
	handle uint64
	// isOdd says that iptables prints something else, or nothing.
	isOdd bool
	// isOwn says that it is a jump to a chain of ours, as [names.ownsJump] finds them.
	isOwn bool
}

// picture is what was found in nf_tables.
type picture struct {
	// hooks are the rules of the kernel's own chains, in order.
	hooks map[chainRef][]nativeRule
	// own are our chains; true says that there are rules in one that iptables prints as
	// something else, or not at all.
	own map[chainRef]bool
}

// forget drops what was found in a table.
func (p *picture) forget(t table) {
	maps.DeleteFunc(p.hooks, func(ref chainRef, _ []nativeRule) bool { return ref.table == t })
	maps.DeleteFunc(p.own, func(ref chainRef, _ bool) bool { return ref.table == t })
}

// hidden are the rules of the kernel's own chains that are not what iptables-save
// prints of them.
func (p *picture) hidden() map[chainRef]hiddenRules {
	all := map[chainRef]hiddenRules{}
	for ref, rules := range p.hooks {
		for i := range rules {
			if rules[i].isOdd {
				h := all[ref]
				h.count, h.at = len(rules), append(h.at, i)
				all[ref] = h
			}
		}
	}
	return all
}

// unread adds our chains whose rules cannot be compared, or all: one rule that cannot be
// written stands for whatever there is.
func (p *picture) unread(found saved, all bool) saved {
	for ref, isOdd := range p.own {
		if isOdd || all {
			found[ref] = []string{""}
		}
	}
	return found
}
