package xtables

import (
	"slices"

	"github.com/vipkit/vipkit/backends"
)

// chainRef identifies a chain of a table.
type chainRef struct {
	table Table
	name  string
}

// saved has the rules of the chains of one identity, in order, and the rules of the kernel's
// own chains that jump to them.
type saved map[chainRef][]string

func isHook(chain string) bool {
	switch chain {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}

// objects returns chains and rules as objects. Their keys do not say whether a rule is at
// the front or at the back of its chain.
func (s saved) objects(n Names) []Object {
	var out []Object
	for ref, rules := range s {
		if !isHook(ref.name) {
			o := Object{Key: Key{Table: ref.table, Chain: ref.name}}
			if !n.IsOpen(ref.name) {
				o.Value = Lines(rules)
			}
			out = append(out, o)
		}
		if !n.IsOpen(ref.name) {
			continue
		}
		for _, rule := range rules {
			if rule == "" { // its key would be that of the chain
				continue
			}
			out = append(out, Object{Key: Key{Table: ref.table, Chain: ref.name, Rule: rule}})
		}
	}
	return out
}

// removal returns the operations that remove everything and unreachable jumps.
func (s saved) removal(n Names, unreachable saved) []Op {
	ops := unreachable.removals(nil)
	for _, o := range s.objects(n) {
		if o.Key.Rule != "" && n.Owns(o.Key.Table, o.Key.Chain) {
			continue // the rule is removed with its chain
		}
		if o.Key.Rule == "" {
			o.Value = Lines(s[chainRef{o.Key.Table, o.Key.Chain}]) // also of an open chain
		}
		ops = append(ops, Op{Kind: backends.Remove, Key: o.Key, Value: o.Value})
	}
	return ops
}

// removals adds the removal of each rule.
func (s saved) removals(ops []Op) []Op {
	for ref, rules := range s {
		for _, rule := range rules {
			ops = append(ops, Op{Kind: backends.Remove, Key: Key{Table: ref.table, Chain: ref.name, Rule: rule}})
		}
	}
	return ops
}

// reflects reports whether the chains and rules are as after an operation.
func (s saved) reflects(o Op) bool {
	rules, exists := s[chainRef{o.Key.Table, o.Key.Chain}]
	switch {
	case o.Key.Rule != "":
		return slices.Contains(rules, o.Key.Rule) == (o.Kind != backends.Remove)
	case o.Kind == backends.Remove:
		return !exists
	}
	return exists && o.Value == Lines(rules)
}
