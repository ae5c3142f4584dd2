package iptables

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// steps tells what a rule does, but for its counter, and whether it counts as plain.
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
	seen := n.look(r)
	return text, !seen.isOdd
}

// rulesOf gives the rules of a chain.
func (n *native) rulesOf(t *testing.T, chain string) (texts []string, plain []bool) {
	t.Helper()
	err := n.conn.Rules(t.Context(), n.table(filter), nfnetlink.Visitor[nfnetlink.RuleInfo]{
		Begin: func() { texts, plain = nil, nil },
		Each: func(r *nfnetlink.RuleInfo) error {
			if r.Chain == chain {
				text, isPlain := n.steps(r)
				texts, plain = append(texts, text), append(plain, isPlain)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts, plain
}

// A rule that counts as one of iptables is printed as what it is: what is printed makes
// the same rule again.
func TestPlainRulesAreWhatIsPrinted(t *testing.T) {
	for family, prefix := range map[v1.IPFamily]string{v1.IPv4Protocol: "ip", v1.IPv6Protocol: "ip6"} {
		s := newStage(t, Options{Flavour: NFT})
		n := &native{family: nativeFamily(family), names: newNames("vipkit")}
		err := s.NS.Do(func() (err error) {
			n.conn, err = nfnetlink.Open()
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		byProtocol := strings.NewReplacer("payload  00000001 00000001 00000009 00000001       ", "meta  00000001 00000010         ") // the same
		plain, odd := 0, 0
		for body := range strings.SplitSeq(nativeBodies, "\n") {
			s.nft(t, "flush ruleset\n")
			s.run(t, "*filter\n:A - [0:0]\n:B - [0:0]\n:VIPKIT-NODEPORTS - [0:0]\n:VIPKIT-MARK-MASQ - [0:0]\nCOMMIT\n", prefix+"tables-restore", "--noflush", "-w", "5")
			_, err := netnstest.Run(t, s.NS, "add rule "+prefix+" filter A "+body+"\n", netnstest.NFT(t), "-f", "-")
			if err != nil || strings.Contains(body, "comment") { // not in this table or family, or in another form
				continue
			}
			rules, isPlain := n.rulesOf(t, "A")
			if !isPlain[0] {
				odd++
				continue
			}
			plain++
			listing := s.run(t, "", prefix+"tables-save", "-t", "filter")
			printed, _, found := strings.Cut(listing[strings.Index(listing, "-A A")+4:], "\n")
			if !found {
				t.Errorf("%s %s: the listing is\n%s", prefix, body, listing)
			}
			s.run(t, "*filter\n-A B"+printed+"\nCOMMIT\n", prefix+"tables-restore", "--noflush", "-w", "5")
			if again, _ := n.rulesOf(t, "B"); len(again) != 1 || again[0] != byProtocol.Replace(rules[0]) {
				t.Errorf("%s %s: is taken for a rule of iptables, which prints it as %q; that makes\n%swant\n%s", prefix, body, printed, again, rules[0])
			}
		}
		if t.Logf("%s: %d rules are as iptables writes them, %d are not", prefix, plain, odd); plain < 5 || odd < 30 {
			t.Error("that shows little")
		}
	}
}

// All rules of this package count as rules of iptables.
func TestOwnRulesArePlain(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT})
	for _, w := range variants() {
		s.Apply(t, w)
		before := s.nft(t, "")
		s.Restart(t)
		s.Apply(t, w)
		if after := s.nft(t, ""); after != before {
			t.Errorf("after a look at everything there is\n%s, and before there was\n%s", after, before)
		}
	}
}

// What is in the place of one of the kernel's own chains, and of no use to iptables, goes
// if nobody else has rules there; else an error names it.
func TestChainInPlaceOfHook(t *testing.T) {
	for _, c := range []struct{ chain, rule, says string }{
		{"{ }", "", ""},
		{"{ type nat hook output priority -90; }", "", ""},
		{"{ type nat hook output priority -90; }", `counter jump VIPKIT-SERVICES`, ""},
		{"{ }", "counter accept", "nft list chain ip nat OUTPUT"},
	} {
		s := newStage(t, Options{Flavour: NFT})
		s.Apply(t, sampleWorld())
		want := s.truth(t)
		s.nft(t, "flush chain ip nat OUTPUT\ndelete chain ip nat OUTPUT\nadd chain ip nat OUTPUT "+c.chain+"\n")
		if c.rule != "" {
			s.nft(t, "add rule ip nat OUTPUT "+c.rule+"\n")
		}
		s.Restart(t)
		err := s.Backend.Apply(t.Context(), s.Applied, sampleWorld())
		if c.says == "" {
			if err != nil {
				t.Errorf("%s %s: got error %v, want none", c.chain, c.rule, err)
			}
			if got := s.truth(t); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s %s: there is %v, want %v", c.chain, c.rule, got, want)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s %s: got error %v, want one that says %q", c.chain, c.rule, err, c.says)
		}
	}
}
