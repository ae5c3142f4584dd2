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

// NFTRules are rules, one in each line, as other programs write them with nft.
const NFTRules = `drop
accept
return
ip daddr 192.0.2.1 counter drop
ip daddr vmap { 192.0.2.1 : drop }
ip daddr 192.0.2.3-192.0.2.9 return
ip daddr 10.0.0.0/8 ip daddr 10.1.0.0/16 return
ip saddr & 255.0.255.0 == 10.0.1.0 return
ip6 saddr { 2001:db8::1, 2001:db8::2 } return
ip6 daddr 2001:db8::1-2001:db8::9 return
tcp dport { 80, 90 } return
tcp sequence 5 return
tcp dport 80 redirect to :81
icmp type echo-request return
@ll,0,8 5 return
meta mark set numgen random mod 2
meta skuid 0 return
ct mark 1 drop
ct state new log prefix "x"
fib daddr type local return
fib daddr oif 1 return
socket transparent 1 return
dup to 192.0.2.1
queue num 1
osf name "Linux" return
tcp option maxseg size set rt mtu
quota over 5 bytes drop
limit rate 5/second accept
jhash ip saddr mod 2 vmap { 0 : drop, 1 : accept }
masquerade
reject
accept comment "hello"
counter jump VIPKIT-NODEPORTS
ip saddr { 192.0.2.1 } counter jump VIPKIT-MARK-MASQ`
