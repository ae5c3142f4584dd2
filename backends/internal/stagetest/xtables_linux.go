package stagetest

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// runIPTables runs iptables-save or iptables-restore of a flavour and of both IP families, in the network
// namespace of the calling thread. It returns their outputs.
func runIPTables(ctx context.Context, flavour, program, input string, args ...string) (outputs []string, err error) {
	for _, name := range [...]string{"iptables-", "ip6tables-"} {
		if flavour != "" {
			name += flavour + "-"
		}
		cmd := exec.CommandContext(ctx, name+program, args...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name+program, err)
		}
		outputs = append(outputs, string(out))
	}
	return outputs, nil
}

// MakeHooks makes the kernel's own chains of tables, such as "*nat\n:OUTPUT ACCEPT\nCOMMIT\n". They do not belong to a
// backend, as iptables cannot remove them.
func MakeHooks(ctx context.Context, flavour, tables string) error {
	_, err := runIPTables(ctx, flavour, "restore", tables, "--noflush", "-w", "5")
	return err
}

// DumpChains returns the chains that owns accepts, and the rules of the kernel's own chains that lead to them. It sorts
// those, and the rules of open chains, whose order has no meaning.
func DumpChains(ctx context.Context, flavour string, owns, isOpen func(chain string) bool) (string, error) {
	outputs, err := runIPTables(ctx, flavour, "save", "")
	rules, isHook, table := map[string][]string{}, map[string]bool{}, ""
	for i, out := range outputs {
		for line := range strings.Lines(out) {
			word := strings.Fields(line[1:] + " .")
			at := func(chain string) string { return fmt.Sprintf("IPv%d %s %s", 4+2*i, table, chain) }
			switch {
			case line[0] == '*':
				table = word[0]
			case line[0] == ':' && owns(word[0]):
				rules[at(word[0])] = nil
			case line[0] == ':':
				isHook[word[0]] = word[1] != "-"
			case line[0] == '-' && (owns(word[1]) || isHook[word[1]] && owns(word[len(word)-2])):
				_, rule, _ := strings.Cut(line, word[1]+" ")
				rules[at(word[1])] = append(rules[at(word[1])], rule)
			}
		}
	}
	var all []string
	for chain, lines := range rules {
		if name := chain[strings.LastIndex(chain, " ")+1:]; isOpen(name) || !owns(name) {
			slices.Sort(lines)
		}
		all = append(all, chain+"\n"+strings.Join(lines, ""))
	}
	slices.Sort(all)
	return strings.Join(all, "\n"), err
}
