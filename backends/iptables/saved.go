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

// rule takes note of a rule, if it is of interest.
func (s saved) rule(t table, n names, chain, rule string) {
	ref := chainRef{t, chain}
	if _, own := s[ref]; own && n.owns(t, chain) {
		s[ref] = append(s[ref], rule)
		return
	}
	if isHook(chain) && n.ownsJump(t, rule) {
		s[ref] = append(s[ref], rule)
	}
}

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
			out = append(out, object{Key: key{table: ref.table, chain: ref.name, rule: rule}})
		}
	}
	return out
}

// removal gives the operations that remove everything.
func (s saved) removal(n names) []op {
	var ops []op
	for _, o := range s.objects(n) {
		if o.Key.rule != "" && n.owns(o.Key.table, o.Key.chain) {
			continue // it goes with its chain
		}
		ops = append(ops, op{Kind: backends.Remove, Key: o.Key, Value: o.Value})
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
