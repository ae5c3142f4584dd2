package xtables

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// model is a fake kernel that runs scripts as iptables-restore does, and refuses what that
// would refuse.
type model saved

// restore runs a script. If a line of the script is refused, the tables before it are
// committed.
func (m model) restore(script string) error {
	work := m.clone()
	var t Table
	for i, line := range rulesOf(script) {
		var err error
		switch {
		case strings.HasPrefix(line, "*"):
			t, _ = newNames().tableNamed(line[1:])
		case line == "COMMIT":
			clear(m)
			maps.Copy(m, work.clone())
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			work[chainRef{t, name}] = nil
		default:
			err = work.command(t, line)
		}
		if err != nil {
			return fmt.Errorf("line %d: %s: %w", i+1, line, err)
		}
	}
	return nil
}

func (m model) clone() model {
	out := model{}
	for ref, rules := range m {
		out[ref] = slices.Clone(rules)
	}
	return out
}

func (m model) command(t Table, line string) error {
	flag, rest, _ := strings.Cut(line, " ")
	chain, rule, _ := strings.Cut(rest, " ")
	ref := chainRef{t, chain}
	rules, exists := m[ref]
	if !exists && !isHook(chain) {
		return fmt.Errorf("no chain %s", chain)
	}
	if to := lastTarget(rule); flag != "-D" && strings.HasPrefix(to, "VIPKIT-") {
		if _, exists := m[chainRef{t, to}]; !exists {
			return fmt.Errorf("no chain %s to jump to", to)
		}
	}
	switch flag {
	case "-A":
		m[ref] = append(rules, rule)
	case "-I":
		m[ref] = append([]string{rule}, rules...)
	case "-D":
		i := slices.Index(rules, rule)
		if i < 0 {
			return fmt.Errorf("no such rule among %q", rules)
		}
		m[ref] = slices.Delete(rules, i, i+1)
	case "-F":
		m[ref] = nil
	case "-X":
		if len(rules) > 0 || m.refers(t, chain) {
			return fmt.Errorf("chain in use: %q", rules)
		}
		delete(m, ref)
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

func (m model) refers(t Table, chain string) bool {
	for ref, rules := range m {
		if ref.table == t && slices.ContainsFunc(rules, func(r string) bool { return lastTarget(r) == chain }) {
			return true
		}
	}
	return false
}

// seen returns what a backend finds.
func (m model) seen(n Names) *existing {
	e := &existing{chains: saved{}, jumps: saved{}}
	for ref, rules := range m {
		if n.Owns(ref.table, ref.name) {
			e.chains[ref] = slices.Clone(rules)
			continue
		}
		for _, rule := range rules {
			if n.ownsJump(ref.table, rule) {
				e.jumps[ref] = append(e.jumps[ref], rule)
			}
		}
	}
	return e
}

// rulesOf splits the content of a chain.
func rulesOf(content string) []string {
	if content == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(content, "\n"), "\n")
}

// lastTarget returns the target of a rule that ends with it: a chain, or an extension such as DROP.
func lastTarget(rule string) string {
	for _, flag := range [...]string{"-j ", "-g "} {
		if at := strings.LastIndex(rule, flag); at >= 0 {
			name, _, _ := strings.Cut(rule[at+len(flag):], " ")
			return name
		}
	}
	return ""
}
