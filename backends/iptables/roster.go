package iptables

import (
	"maps"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
)

// roster are the rules of open chains, with the half of the chain that each
// belongs to: true for the one behind. With it, a chain can be written anew where
// many rules go: iptables finds each by comparing it with all, which in the
// flavour that uses nf_tables takes longer than writing them.
type roster map[chainRef]map[string]bool

// manyRemovals is how many rules of a chain are removed one by one.
const manyRemovals = 16

// note takes note of operations that were carried out.
func (r roster) note(ops []op) {
	for i := range ops {
		k := &ops[i].Key
		if k.rule == "" {
			continue
		}
		ref := chainRef{k.table, k.chain}
		if r[ref] == nil {
			r[ref] = map[string]bool{}
		}
		if ops[i].Kind == backends.Remove {
			delete(r[ref], k.rule)
		} else {
			r[ref][k.rule] = k.back
		}
	}
}

// crowded gives the chains from which many rules are to be removed.
func crowded(ops []op) map[chainRef]int {
	removals := map[chainRef]int{}
	for i := range ops {
		if k := &ops[i].Key; k.rule != "" && ops[i].Kind == backends.Remove && !isHook(k.chain) {
			removals[chainRef{k.table, k.chain}]++
		}
	}
	maps.DeleteFunc(removals, func(_ chainRef, n int) bool { return n <= manyRemovals })
	return removals
}

// compact puts one operation that writes a chain in the place of many that remove
// rules from it.
func (r roster) compact(ops []op) []op {
	removals := crowded(ops)
	if len(removals) == 0 {
		return ops
	}
	whole := roster{}
	var out []op
	for i := range ops {
		k := &ops[i].Key
		ref := chainRef{k.table, k.chain}
		if removals[ref] == 0 {
			out = append(out, ops[i])
			continue
		}
		if k.rule == "" { // the chain itself comes or goes
			return ops
		}
		if whole[ref] == nil {
			whole[ref] = maps.Clone(r[ref])
		}
		whole.note(ops[i : i+1])
		if ref.table == filter && ops[i].Kind == backends.Add {
			out = append(out, ops[i])
		}
	}
	for ref, rules := range whole {
		out = append(out, rewriting(ref, content(rules)))
	}
	return out
}

// rewriting gives an open chain all its rules at once. In table filter that is for
// the end; rules that are new have been added before.
func rewriting(ref chainRef, rules string) op {
	return op{Kind: backends.Replace, Key: key{table: ref.table, chain: ref.name, back: ref.table == filter}, Value: rules}
}

// content writes the rules of an open chain.
func content(rules map[string]bool) string {
	var halves [2]strings.Builder
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		b := &halves[0]
		if rules[rule] {
			b = &halves[1]
		}
		b.WriteString(rule)
		b.WriteByte('\n')
	}
	return halves[0].String() + halves[1].String()
}
