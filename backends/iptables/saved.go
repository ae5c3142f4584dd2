package iptables

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

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

// longestLine bounds a line of iptables-save; those of others may be long.
const longestLine = 1 << 20

// readSaved reads the output of iptables-save.
func readSaved(r io.Reader, n names) (saved, error) {
	s := saved{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), longestLine)
	var t table
	inTable := false
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.Contains(line, "is incompatible, use 'nft' tool"):
			return nil, fmt.Errorf("%w: %s", errIncompatible, line)
		case strings.HasPrefix(line, "*"):
			t, inTable = tableNamed(line[1:])
		case !inTable:
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			if n.owns(t, name) {
				s[chainRef{t, name}] = nil
			}
		case strings.HasPrefix(line, "-A "):
			s.rule(t, n, line[len("-A "):])
		}
	}
	return s, lines.Err()
}

// rule takes note of a rule, if it is of interest.
func (s saved) rule(t table, n names, line string) {
	chain, rule, _ := strings.Cut(line, " ")
	ref := chainRef{t, chain}
	if _, own := s[ref]; own && n.owns(t, chain) {
		s[ref] = append(s[ref], rule)
		return
	}
	if isHook(chain) && n.owns(t, target(rule)) {
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

// target gives the chain that a rule leads to.
func target(rule string) string {
	for _, flag := range [...]string{"-j ", "-g "} {
		if i := strings.LastIndex(rule, flag); i == 0 || i > 0 && rule[i-1] == ' ' {
			name, _, _ := strings.Cut(rule[i+len(flag):], " ")
			return name
		}
	}
	return ""
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

// errIncompatible marks tables that only the program nft can read.
var errIncompatible = errors.New("another program has rules in the tables of iptables that iptables cannot read")
