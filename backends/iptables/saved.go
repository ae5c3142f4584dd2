package iptables

import (
	"slices"

	"github.com/vipkit/vipkit/backends"
)

// chainRef names a chain of a table.
type chainRef struct {
	table table
	name  string
}

// saved is what was found of one identity: the rules of its chains, in order,
// and those of the kernel's own chains that lead there.
type saved map[chainRef][]string

func isHook(chain string) bool {
	switch chain {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}

// objects gives what was found, in the form in which it is rendered, but
// for the places of single rules.
func (s saved) objects(n names) []object {
	var out []object
	for ref, rules := range s {
		if !isHook(ref.name) {
			o := object{Key: key{table: ref.table, chain: ref.name}}
			if !n.isOpen(ref.name) {
				o.Value = lines(rules)
			}
			out = append(out, o)
		}
		if !n.isOpen(ref.name) {
			continue
		}
		for _, rule := range rules {
			if rule == "" { // the key would be that of the chain
				continue
			}
			out = append(out, object{Key: key{table: ref.table, chain: ref.name, rule: rule}})
		}
	}
	return out
}

// removal gives the operations that remove everything, dead jumps too.
func (s saved) removal(n names, dead saved) []op {
	ops := dead.removals(nil)
	for _, o := range s.objects(n) {
		if o.Key.rule != "" && n.owns(o.Key.table, o.Key.chain) {
			continue // it goes with its chain
		}
		ops = append(ops, op{Kind: backends.Remove, Key: o.Key, Value: o.Value})
	}
	return ops
}

// removals adds the removal of each rule.
func (s saved) removals(ops []op) []op {
	for ref, rules := range s {
		for _, rule := range rules {
			ops = append(ops, op{Kind: backends.Remove, Key: key{table: ref.table, chain: ref.name, rule: rule}})
		}
	}
	return ops
}

// shows reports whether it is as if an operation had been carried out.
func (s saved) shows(o op) bool {
	rules, exists := s[chainRef{o.Key.table, o.Key.chain}]
	switch {
	case o.Key.rule != "":
		return slices.Contains(rules, o.Key.rule) == (o.Kind != backends.Remove)
	case o.Kind == backends.Remove:
		return !exists
	}
	return exists && o.Value == lines(rules)
}
