package xtables

import (
	"maps"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
)

// adoption plans the operations from the chains and rules that were found to the wanted
// ones. It exists during one full Apply. If a commit is refused, the Apply tries it again in
// parts, and all parts share the adoption.
type adoption struct {
	names Names
	// found are the existing chains and rules, and unreachable the jumps that no packet
	// reaches; nil after they are removed.
	found, unreachable saved
	// isForeign reports whether another program wrote a rule. Such rules are removed from a
	// table before or with the first additions, and not after these: the kernel refuses each
	// jump to a chain with a rule that is invalid in the hook of the jump.
	isForeign func(t Table, rule string) bool
	// replaced has old jumps that iptables cannot find; they are removed after the new
	// ones have been added.
	replaced *ruleset
	// wanted has all chains and rules of the first commit; each later part requests some
	// of them. True means that a rule is at the back of its chain. It is nil after the first
	// part was committed.
	wanted map[Key]bool
	// whole is true if the operations that are planned are all that are wanted. Otherwise own
	// rules stay until all parts are committed: another part may add what takes their place.
	whole bool
	// made has the chains and rules of the parts that were committed.
	made map[Key]bool
}

// newAdoption makes an adoption of the chains and rules that were found, by the operations
// of all parts together.
func newAdoption(n Names, found, unreachable saved, ops []Op) *adoption {
	a := &adoption{
		names: n, found: found, unreachable: unreachable, isForeign: func(Table, string) bool { return false },
		wanted: make(map[Key]bool, len(ops)), made: make(map[Key]bool, len(ops)),
	}
	for i := range ops {
		a.wanted[plainKey(&ops[i].Key)] = ops[i].Key.Back
	}
	return a
}

// plainKey is the part of a key that can be read back from the kernel.
func plainKey(k *Key) Key { return Key{Table: k.Table, Chain: k.Chain, Rule: k.Rule} }

// plan returns the operations from what was found to what ops add. The first plan that is
// committed also removes what other programs wrote and, if ops are all that is wanted, what is
// not wanted.
func (a *adoption) plan(ops []Op) []Op {
	var out []Op
	open := map[chainRef][]Op{}
	requested := make(map[Key]bool, len(ops))
	for i := range ops {
		o := ops[i]
		ref := chainRef{o.Key.Table, o.Key.Chain}
		requested[plainKey(&o.Key)] = true
		switch {
		case o.Kind != backends.Add:
			out = append(out, o)
		case o.Key.Rule != "":
			open[ref] = append(open[ref], o)
		default:
			out = a.chain(out, ref, o)
		}
	}
	a.whole = len(requested) == len(a.wanted)
	if a.wanted != nil {
		out = a.removeUnwanted(out, open, requested)
	}
	unreachable := maps.Clone(a.unreachable)
	for ref, rules := range open {
		replaceUnreachable(unreachable, ref, rules)
		out = a.rules(out, ref, rules)
	}
	return unreachable.removals(out)
}

// replaceUnreachable replaces the addition of a jump that exists but is unreachable by a
// replacement, and removes that jump from unreachable.
func replaceUnreachable(unreachable saved, ref chainRef, adds []Op) {
	for i, o := range adds {
		same := func(rule string) bool { return rule == o.Key.Rule }
		if old := unreachable[ref]; slices.ContainsFunc(old, same) {
			unreachable[ref] = slices.DeleteFunc(slices.Clone(old), same)
			adds[i].Kind, adds[i].Value = backends.Replace, strings.Repeat(o.Key.Rule+"\n", len(old)-len(unreachable[ref]))
		}
	}
}

// chain adds the operation that makes or replaces a chain, if one is needed.
func (a *adoption) chain(out []Op, ref chainRef, o Op) []Op {
	rules, exists := a.found[ref]
	switch {
	case !exists:
		return append(out, o)
	case a.names.IsOpen(ref.name) || o.Value == Lines(rules):
		return out
	}
	o.Kind = backends.Replace
	return append(out, o)
}

// removeUnwanted adds the removal of chains that are not wanted, if a.whole, and of foreign rules
// from chains that are not changed otherwise. It adds all other open chains to open, so that their
// rules are compared.
func (a *adoption) removeUnwanted(out []Op, open map[chainRef][]Op, requested map[Key]bool) []Op {
	for ref, rules := range a.found {
		isForeign := func(rule string) bool { return a.isForeign(ref.table, rule) }
		k := Key{Table: ref.table, Chain: ref.name}
		_, isWanted := a.wanted[k]
		switch {
		case isHook(ref.name), isWanted && a.names.IsOpen(ref.name):
			open[ref] = slices.Clip(open[ref])
		case !isWanted && a.whole:
			if ref.table == Filter && slices.ContainsFunc(rules, isForeign) { // the removal is after additions
				out = append(out, Op{Kind: backends.Replace, Key: k})
			}
			out = append(out, Op{Kind: backends.Remove, Key: k, Value: Lines(rules)})
		case !requested[k] && slices.ContainsFunc(rules, isForeign):
			out = append(out, Op{Kind: backends.Replace, Key: k, Value: Lines(slices.DeleteFunc(slices.Clone(rules), isForeign))})
		}
	}
	return out
}

// ManyChanges is the maximum number of rules of an adopted chain that are written or removed one by
// one. If there are more, the chain is rewritten.
const ManyChanges = 32

// rules adds the operations that add missing rules to an open chain and remove those that
// are not wanted.
func (a *adoption) rules(out []Op, ref chainRef, adds []Op) []Op {
	changes, kept, orderly := match(a.found[ref], adds)
	usual, foreign := true, false
	if a.wanted != nil {
		changes, usual, foreign = a.unwantedRules(changes, ref, kept)
	}
	if isHook(ref.name) || a.wanted == nil || len(changes) <= ManyChanges && orderly && usual && !foreign {
		return append(out, changes...)
	}
	rewritten := rewriting(ref, a.allRules(ref, adds))
	switch {
	case foreign:
		rewritten.Key.Back = false
	case ref.table == Filter:
		out = append(out, slices.DeleteFunc(changes, func(o Op) bool { return o.Kind == backends.Remove })...)
	}
	return append(out, rewritten)
}

// match marks the found rules of a chain that operations add, and returns the operations
// that add missing ones. A chain is orderly if it has no rule twice, and no rule for the
// front after one for the back.
func match(found []string, adds []Op) (missing []Op, kept []bool, orderly bool) {
	have := make(map[string]int, len(found))
	for i, rule := range slices.Backward(found) {
		have[rule] = i
	}
	kept = make([]bool, len(found))
	lastFront, firstBack := -1, len(found)
	for _, o := range adds {
		i, ok := have[o.Key.Rule]
		switch {
		case !ok:
			missing = append(missing, o)
			continue
		case o.Key.Back:
			firstBack = min(firstBack, i)
		default:
			lastFront = max(lastFront, i)
		}
		kept[i] = true
	}
	return missing, kept, lastFront < firstBack && len(have) == len(found)
}

// unwantedRules adds the removal of rules that are not wanted, and of duplicates. usual is
// true if each can be removed by its text, and foreign if the chain must be rewritten before
// any jump is added.
func (a *adoption) unwantedRules(changes []Op, ref chainRef, kept []bool) (all []Op, usual, foreign bool) {
	seen := map[string]bool{}
	usual = true
	for i, rule := range a.found[ref] {
		k := Key{Table: ref.table, Chain: ref.name, Rule: rule}
		_, isWanted := a.wanted[k]
		isWanted = isWanted || !a.whole && !isHook(ref.name) && !a.isForeign(ref.table, rule)
		if !kept[i] && (seen[rule] || !isWanted || rule == "") { // an empty rule would give the key of the chain
			changes = append(changes, Op{Kind: backends.Remove, Key: k})
			usual = usual && isUsual(ref.table, rule)
			foreign = foreign || ref.table == Filter && a.isForeign(Filter, rule)
		}
		seen[rule] = true
	}
	return changes, usual, foreign
}

// allRules returns the rules of an open chain: those that are added, and existing ones that
// other parts request or that stay until all parts are committed.
func (a *adoption) allRules(ref chainRef, adds []Op) string {
	rules := make(map[string]bool, len(adds))
	for _, o := range adds {
		rules[o.Key.Rule] = o.Key.Back
	}
	var stay []string
	for _, rule := range a.found[ref] {
		isBack, isWanted := a.wanted[Key{Table: ref.table, Chain: ref.name, Rule: rule}]
		_, isAdded := rules[rule]
		switch {
		case !isWritable(rule):
		case isWanted:
			rules[rule] = isBack
		case !a.whole && !isAdded && !a.isForeign(ref.table, rule):
			stay = append(stay, rule)
		}
	}
	return content(rules, stay)
}

// content returns the rules of an open chain as text: those for the front, some in the middle,
// and those for the back.
func content(rules map[string]bool, middle []string) string {
	var front, back []string
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		if rules[rule] {
			back = append(back, rule)
		} else {
			front = append(front, rule)
		}
	}
	return Lines(slices.Concat(front, slices.Compact(middle), back))
}

// unrequested returns the operations that remove what was found and no committed part
// requested: the chains and rules of service ports that were refused.
func (a *adoption) unrequested() (ops []Op) {
	for ref, rules := range a.found {
		k := Key{Table: ref.table, Chain: ref.name}
		switch {
		case isHook(ref.name): // no service port has rules there
		case !a.made[k]:
			ops = append(ops, Op{Kind: backends.Remove, Key: k, Value: Lines(rules)})
		case a.names.IsOpen(ref.name):
			for _, k.Rule = range rules {
				if !a.made[k] {
					ops = append(ops, Op{Kind: backends.Remove, Key: k})
				}
			}
		}
	}
	return ops
}

// record stores the requested operations, and the resulting ones, after their commit.
func (a *adoption) record(requested, ops []Op) {
	a.wanted, a.unreachable = nil, nil
	for i := range requested {
		a.made[plainKey(&requested[i].Key)] = true
	}
	for i := range ops {
		o := &ops[i]
		ref := chainRef{o.Key.Table, o.Key.Chain}
		switch {
		case o.Key.Rule != "" && o.Kind == backends.Remove:
			if at := slices.Index(a.found[ref], o.Key.Rule); at >= 0 {
				a.found[ref] = slices.Delete(a.found[ref], at, at+1)
			}
		case o.Key.Rule != "":
			a.found[ref] = append(a.found[ref], o.Key.Rule)
		case o.Kind == backends.Remove:
			delete(a.found, ref)
		default:
			a.found[ref] = rulesOf(o.Value)
		}
	}
}

// rulesOf splits the content of a chain.
func rulesOf(content string) []string {
	if content == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(content, "\n"), "\n")
}
