package xtables

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// steps returns the steps of a rule as text, without its counter, and whether iptables can
// print the rule (plain).
func (n *native) steps(r *nfnetlink.RuleInfo) (text string, isPlain bool) {
	for s := range r.Steps() {
		if string(s.Name) == "counter" {
			continue
		}
		text += string(s.Name)
		for attr := range uint16(12) {
			text += fmt.Sprintf(" %x", s.Bytes(attr))
		}
		text += "\n"
	}
	seen := n.readRule(r)
	return text, !seen.isMisprinted
}

// rulesOf returns the rules of a chain.
func (n *native) rulesOf(t *testing.T, chain string) (texts []string, plain []bool) {
	t.Helper()
	err := n.conn.Rules(t.Context(), n.table(Filter), nfnetlink.Visitor[nfnetlink.RuleInfo]{
		Begin: func() { texts, plain = nil, nil },
		Each: func(r *nfnetlink.RuleInfo) error {
			if r.Chain == chain {
				text, isPlain := n.steps(r)
				texts, plain = append(texts, text), append(plain, isPlain)
			}
			return nil
		},
	})
	testenv.NoError(t, err)
	return texts, plain
}

// A rule that counts as plain is printed correctly: iptables-restore makes the same rule from
// the output of iptables-save.
func TestPlainRulesAreWhatIsPrinted(t *testing.T) {
	t.Parallel()
	for family, prefix := range map[v1.IPFamily]string{v1.IPv4Protocol: "ip", v1.IPv6Protocol: "ip6"} {
		s := newStage(t, config(NFT))
		n := &native{family: nft.FamilyOf(family), names: newNames("vipkit")}
		err := s.NS.Do(func() (err error) {
			n.conn, err = nfnetlink.Open()
			return err
		})
		testenv.NoError(t, err)
		byProtocol := strings.NewReplacer("payload  00000001 00000001 00000009 00000001       ", "meta  00000001 00000010         ") // the same
		plain, unprintable := 0, 0
		for body := range strings.SplitSeq(stagetest.NFTRules, "\n") {
			s.nft(t, "flush ruleset\n")
			s.run(t, "*filter\n:A - [0:0]\n:B - [0:0]\n:VIPKIT-NODEPORTS - [0:0]\n:VIPKIT-MARK-MASQ - [0:0]\nCOMMIT\n", prefix+"tables-restore", "--noflush", "-w", "5")
			_, err := netnstest.Run(t, s.NS, "add rule "+prefix+" filter A "+body+"\n", netnstest.NFT(t), "-f", "-")
			if err != nil || strings.Contains(body, "comment") { // invalid in this table or family, or of another form
				continue
			}
			rules, isPlain := n.rulesOf(t, "A")
			if !isPlain[0] {
				unprintable++
				continue
			}
			plain++
			listing := s.run(t, "", prefix+"tables-save", "-t", "filter")
			printed, _, found := strings.Cut(listing[strings.Index(listing, "-A A")+4:], "\n")
			if !found {
				t.Errorf("%s %s: listing: got\n%s\nwant a rule of chain A", prefix, body, listing)
			}
			s.run(t, "*filter\n-A B"+printed+"\nCOMMIT\n", prefix+"tables-restore", "--noflush", "-w", "5")
			if again, _ := n.rulesOf(t, "B"); len(again) != 1 || again[0] != byProtocol.Replace(rules[0]) {
				t.Errorf("%s %s: rule that iptables makes from its own output %q: got\n%s\nwant\n%s", prefix, body, printed, again, rules[0])
			}
		}
		if t.Logf("%s: %d rules are as iptables writes them, %d are not", prefix, plain, unprintable); plain < 5 || unprintable < 30 {
			t.Errorf("%s: got %d plain and %d unprintable rules, want at least 5 and 30", prefix, plain, unprintable)
		}
	}
}
