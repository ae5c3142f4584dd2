package storm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// rule is a rule of iptables that belongs to an agent, as iptables-save writes it.
type rule struct {
	table, chain string
	number       int // position in its chain, from 1
	words        []string
}

func (r *rule) text() string { return strings.Join(r.words, " ") }

// rules returns the rules of a family that belong to an agent, including jumps to its
// chains.
func (s *storm) rules(program string) (all []rule, err error) {
	text, err := s.runOnNode("", program+"-save")
	if err != nil {
		return nil, err
	}
	table, counts := "", map[string]int{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		}
		words := splitWords(line)
		if len(words) < 3 || words[0] != "-A" {
			continue
		}
		chain := words[1]
		counts[table+chain]++
		if strings.Contains(line, "VIPKIT-") {
			all = append(all, rule{table, chain, counts[table+chain], words[2:]})
		}
	}
	return all, nil
}

// splitWords splits a line at spaces that are not within quotes.
func splitWords(line string) (words []string) {
	quoted := false
	return strings.FieldsFunc(line, func(c rune) bool {
		quoted = quoted != (c == '"')
		return c == ' ' && !quoted
	})
}

// tamperLines changes a rule of an agent in the tables of iptables.
func (s *storm) tamperLines(r *rand.Rand, flavour string) error {
	program := objects.OneOf(r, "iptables-", "iptables-", "ip6tables-") + flavour
	all, err := s.rules(program)
	if err != nil || len(all) == 0 {
		return err
	}
	const tries = 30
	end := time.Now().Add(3 * time.Second)
	for range tries {
		if time.Now().After(end) {
			return nil // Another step holds the lock of iptables, which each try waits for.
		}
		one := all[r.IntN(len(all))]
		lines := tamperedLines(r, &one, all)
		if lines == "" {
			continue
		}
		text := fmt.Sprintf("*%s\n%sCOMMIT\n", one.table, lines)
		if s.runAndRecord(text, program+"-restore", "--noflush", "-w", "2") {
			return nil
		}
	}
	return nil // The kernel rejected all attempts.
}

func tamperedLines(r *rand.Rand, one *rule, all []rule) string {
	isOurs := strings.HasPrefix(one.chain, "VIPKIT-")
	verdict := objects.OneOf(r, "DROP", "ACCEPT", "RETURN")
	if verdict == "DROP" && one.table == "nat" {
		verdict = "RETURN" // iptables rejects DROP in table nat
	}
	switch r.IntN(7) {
	case 0:
		return fmt.Sprintf("-D %s %d\n", one.chain, one.number)
	case 1:
		return fmt.Sprintf("-%s %s %s\n", objects.OneOf(r, "A", "I"), one.chain, one.text())
	case 2:
		return fmt.Sprintf("-D %s %d\n-%s %s %s\n", one.chain, one.number, objects.OneOf(r, "A", "I"), one.chain, one.text())
	case 3:
		if isOurs {
			return fmt.Sprintf("-I %s %d -j %s\n", one.chain, one.number, verdict)
		}
	case 4:
		if isOurs {
			return fmt.Sprintf("-F %s\n", one.chain)
		}
	default:
		if text := alteredWords(r, one, all); text != "" {
			return fmt.Sprintf("-R %s %d %s\n", one.chain, one.number, text)
		}
	}
	return ""
}

// alteredWords returns the text of a rule with one word replaced by the word that follows
// the same option in another rule. It is empty if there is none.
func alteredWords(r *rand.Rand, one *rule, all []rule) string {
	i := 1 + r.IntN(max(1, len(one.words)-1))
	var values []string
	for _, x := range all {
		for n := 1; n < len(x.words); n++ {
			if i < len(one.words) && x.words[n-1] == one.words[i-1] && x.words[n] != one.words[i] {
				values = append(values, x.words[n])
			}
		}
	}
	if len(values) == 0 || strings.HasPrefix(one.words[i], "-") {
		return ""
	}
	words := append([]string(nil), one.words...)
	words[i] = values[r.IntN(len(values))]
	return strings.Join(words, " ")
}
