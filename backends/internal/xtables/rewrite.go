package xtables

import (
	"maps"
	"slices"

	"github.com/vipkit/vipkit/backends"
)

// ManyRemovals is the maximum number of rules that a change removes from a chain one by one,
// in the flavour that uses nf_tables. Each takes about 2 ms; for more rules, reading and
// writing the whole chain is faster. In the legacy flavour one by one is always faster.
const ManyRemovals = 128

// manyRemoved returns the chains from which many rules are to be removed.
func manyRemoved(ops []Op) map[chainRef]bool {
	removals := map[chainRef]int{}
	for i := range ops {
		if k := &ops[i].Key; k.Rule != "" && ops[i].Kind == backends.Remove && !isHook(k.Chain) {
			removals[chainRef{k.Table, k.Chain}]++
		}
	}
	out := map[chainRef]bool{}
	for ref, n := range removals {
		if n > ManyRemovals {
			out[ref] = true
		}
	}
	return out
}

// rewrite merges the operations on the rules of each chain in manyRemoved into one that
// writes the whole chain, given what was found. It returns the operations unchanged if a
// rule to be removed was not found: then they conflict with the existing rules.
func rewrite(ops []Op, manyRemoved map[chainRef]bool, found saved) []Op {
	of := map[chainRef][]Op{}
	for i := range ops {
		k := &ops[i].Key
		switch ref := (chainRef{k.Table, k.Chain}); {
		case !manyRemoved[ref]:
		case k.Rule == "": // the chain itself is added or removed
			return ops
		default:
			of[ref] = append(of[ref], ops[i])
		}
	}
	out := slices.DeleteFunc(slices.Clone(ops), func(o Op) bool { return manyRemoved[chainRef{o.Key.Table, o.Key.Chain}] })
	for ref, changes := range of {
		rules, ok := changed(found[ref], changes)
		if !ok {
			return ops
		}
		if ref.table == Filter {
			out = append(out, slices.DeleteFunc(changes, func(o Op) bool { return o.Kind == backends.Remove })...)
		}
		out = append(out, rewriting(ref, Lines(rules)))
	}
	return out
}

// changed returns the rules of an open chain after operations on single rules. It is ok if
// all rules to be removed exist.
func changed(found []string, ops []Op) (rules []string, ok bool) {
	removed := map[string]bool{}
	var back []string
	for i := range ops {
		switch k := &ops[i].Key; {
		case ops[i].Kind == backends.Remove:
			removed[k.Rule] = true
		case k.Back:
			back = append(back, k.Rule)
		default:
			rules = append(rules, k.Rule)
		}
	}
	left := maps.Clone(removed)
	for _, rule := range found {
		if delete(left, rule); !removed[rule] && isWritable(rule) {
			rules = append(rules, rule)
		}
	}
	return append(rules, back...), len(left) == 0
}

// rewriting replaces all rules of an open chain at once. In table filter it is written last,
// after new rules have been added.
func rewriting(ref chainRef, rules string) Op {
	return Op{Kind: backends.Replace, Key: Key{Table: ref.table, Chain: ref.name, Back: ref.table == Filter}, Value: rules}
}
