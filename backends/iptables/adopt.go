package iptables

import (
	"maps"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
)

// adoption turns what is wanted into what must be done, given what was found.
type adoption struct {
	names names
	found saved
	// dead are jumps that no packet comes to. Once they are gone, it is nil.
	dead saved
	// replaced is where old jumps are that iptables cannot find, and that are to go once
	// the new ones are there.
	replaced *picture
	// wanted are all chains and rules that will be wanted in the end, though
	// perhaps not by the operations at hand, with the half of the chain that a
	// rule belongs to: true for the one behind. Once what nobody wants is gone,
	// it is nil.
	wanted map[key]bool
	// made are those that were asked for, in a look at everything, by operations that
	// could be carried out.
	made map[key]bool
}

func newAdoption(n names, found, dead saved, ops []op) *adoption {
	a := &adoption{names: n, found: found, dead: dead, wanted: make(map[key]bool, len(ops)), made: make(map[key]bool, len(ops))}
	for i := range ops {
		a.wanted[plainKey(&ops[i].Key)] = ops[i].Key.back
	}
	return a
}

// plainKey is a key as it can be told from what was found.
func plainKey(k *key) key { return key{table: k.table, chain: k.chain, rule: k.rule} }

// plan gives the operations that lead from what was found to what ops add; what
// nobody wants is removed, unless that was done before.
func (a *adoption) plan(ops []op) []op {
	var out []op
	open := map[chainRef][]op{}
	at := make(map[key]bool, len(ops)) // what the operations at hand are about
	for i := range ops {
		o := ops[i]
		ref := chainRef{o.Key.table, o.Key.chain}
		at[plainKey(&o.Key)] = true
		switch {
		case o.Kind != backends.Add:
			out = append(out, o)
		case o.Key.rule != "":
			open[ref] = append(open[ref], o)
		default:
			out = a.chain(out, ref, o)
		}
	}
	if a.wanted != nil {
		out = a.sweep(out, open, a.held(at))
	}
	dead := maps.Clone(a.dead)
	for ref, rules := range open {
		revive(dead, ref, rules)
		out = a.rules(out, ref, rules)
	}
	return dead.removals(out)
}

// revive has dead jumps that are wanted give way to new ones.
func revive(dead saved, ref chainRef, adds []op) {
	for i, o := range adds {
		same := func(rule string) bool { return rule == o.Key.rule }
		if old := dead[ref]; slices.ContainsFunc(old, same) {
			dead[ref] = slices.DeleteFunc(slices.Clone(old), same)
			adds[i].Kind, adds[i].Value = backends.Replace, strings.Repeat(o.Key.rule+"\n", len(old)-len(dead[ref]))
		}
	}
}

// held are the chains that must stay for the time being, as something leads to
// them that is wanted, and that the operations at hand leave as it is.
func (a *adoption) held(at map[key]bool) map[chainRef]bool {
	held := map[chainRef]bool{}
	var hold func(t table, rules []string)
	hold = func(t table, rules []string) {
		for _, rule := range rules {
			ref := chainRef{t, target(rule)}
			if !held[ref] {
				held[ref] = true
				hold(t, a.found[ref])
			}
		}
	}
	for k := range a.wanted {
		switch ref := (chainRef{k.table, k.chain}); {
		case at[k], k.rule != "": // where a rule leads, the same service port wants
		case !a.names.isOpen(k.chain):
			hold(k.table, a.found[ref])
		}
	}
	return held
}

// chain adds the operation that makes a chain what it is to be, if it is not.
func (a *adoption) chain(out []op, ref chainRef, o op) []op {
	rules, exists := a.found[ref]
	switch {
	case !exists:
		return append(out, o)
	case a.names.isOpen(ref.name) || o.Value == lines(rules):
		return out
	}
	o.Kind = backends.Replace
	return append(out, o)
}

// sweep adds what removes chains that nobody wants, and has all open chains
// looked at.
func (a *adoption) sweep(out []op, open map[chainRef][]op, held map[chainRef]bool) []op {
	for ref, rules := range a.found {
		k := key{table: ref.table, chain: ref.name}
		_, isWanted := a.wanted[k]
		switch {
		case isHook(ref.name), isWanted && a.names.isOpen(ref.name):
			open[ref] = slices.Clip(open[ref])
		case !isWanted && !held[ref]:
			out = append(out, op{Kind: backends.Remove, Key: k, Value: lines(rules)})
		}
	}
	return out
}

// many is how many rules of a chain are written or removed one by one: each is
// searched for by its text. Above that, the chain is written anew.
const many = 32

// rules adds what makes the rules of an open chain complete, and removes those
// that nobody wants.
func (a *adoption) rules(out []op, ref chainRef, adds []op) []op {
	changes, kept, orderly := claim(a.found[ref], adds)
	usual := true
	if a.wanted != nil {
		changes, usual = a.strays(changes, ref, kept)
	}
	if isHook(ref.name) || a.wanted == nil || len(changes) <= many && orderly && usual {
		return append(out, changes...)
	}
	if ref.table == filter {
		out = append(out, slices.DeleteFunc(changes, func(o op) bool { return o.Kind == backends.Remove })...)
	}
	return append(out, rewriting(ref, a.all(ref, adds)))
}

// claim finds the rules of a chain that are there already, and gives the
// operations that add the others. The chain is orderly if nothing stands there
// twice, or in the wrong half.
func claim(found []string, adds []op) (missing []op, kept []bool, orderly bool) {
	have := make(map[string]int, len(found))
	for i, rule := range slices.Backward(found) {
		have[rule] = i
	}
	kept = make([]bool, len(found))
	lastFront, firstBack := -1, len(found)
	for _, o := range adds {
		i, ok := have[o.Key.rule]
		switch {
		case !ok:
			missing = append(missing, o)
			continue
		case o.Key.back:
			firstBack = min(firstBack, i)
		default:
			lastFront = max(lastFront, i)
		}
		kept[i] = true
	}
	return missing, kept, lastFront < firstBack && len(have) == len(found)
}

// strays adds the removal of rules that nobody wants, and of second copies. All are
// usual if any can be removed by its text.
func (a *adoption) strays(changes []op, ref chainRef, kept []bool) (all []op, usual bool) {
	seen, usual := map[string]bool{}, true
	for i, rule := range a.found[ref] {
		k := key{table: ref.table, chain: ref.name, rule: rule}
		_, isWanted := a.wanted[k]
		if !kept[i] && (seen[rule] || !isWanted || rule == "") { // without a rule, the key is that of the chain
			changes = append(changes, op{Kind: backends.Remove, Key: k})
			usual = usual && isUsual(ref.table, rule)
		}
		seen[rule] = true
	}
	return changes, usual
}

// all gives all rules of an open chain: those that are added, and found ones that
// others want.
func (a *adoption) all(ref chainRef, adds []op) string {
	rules := make(map[string]bool, len(adds))
	for _, o := range adds {
		rules[o.Key.rule] = o.Key.back
	}
	for _, rule := range a.found[ref] {
		if isBack, isWanted := a.wanted[key{table: ref.table, chain: ref.name, rule: rule}]; isWanted && isWritable(rule) {
			rules[rule] = isBack
		}
	}
	return content(rules)
}

// rest gives the operations that remove what was found and has not been asked for by
// any operation that could be carried out: what there is of service ports that were
// refused.
func (a *adoption) rest() (ops []op) {
	for ref, rules := range a.found {
		k := key{table: ref.table, chain: ref.name}
		switch {
		case isHook(ref.name): // no service port has rules there
		case !a.made[k]:
			ops = append(ops, op{Kind: backends.Remove, Key: k, Value: lines(rules)})
		case a.names.isOpen(ref.name):
			for _, k.rule = range rules {
				if !a.made[k] {
					ops = append(ops, op{Kind: backends.Remove, Key: k})
				}
			}
		}
	}
	return ops
}

// settle takes note of what was asked for, and of the operations that were carried out
// for it.
func (a *adoption) settle(asked, ops []op) {
	a.wanted, a.dead = nil, nil
	for i := range asked {
		a.made[plainKey(&asked[i].Key)] = true
	}
	for i := range ops {
		o := &ops[i]
		ref := chainRef{o.Key.table, o.Key.chain}
		switch {
		case o.Key.rule != "" && o.Kind == backends.Remove:
			if at := slices.Index(a.found[ref], o.Key.rule); at >= 0 {
				a.found[ref] = slices.Delete(a.found[ref], at, at+1)
			}
		case o.Key.rule != "":
			a.found[ref] = append(a.found[ref], o.Key.rule)
		case o.Kind == backends.Remove:
			delete(a.found, ref)
		default:
			a.found[ref] = rulesOf(o.Value)
		}
	}
}

// rulesOf takes the content of a chain apart.
func rulesOf(content string) []string {
	if content == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(content, "\n"), "\n")
}
