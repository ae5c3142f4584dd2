package iptables

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// All rules of this package are plain, so that a full apply does not write them again.
func TestOwnRulesArePlain(t *testing.T) {
	t.Parallel()
	s := newStage(t, Options{Flavour: NFT})
	for _, w := range variants() {
		s.Apply(t, w)
		before := s.nft(t, "")
		s.Restart(t)
		s.Apply(t, w)
		if after := s.nft(t, ""); after != before {
			t.Errorf("ruleset after a full apply: got\n%s\nwant\n%s", after, before)
		}
	}
}

// A chain that has the name of one of the kernel's own chains, and that iptables cannot use,
// is removed unless it has foreign rules; then an error names it.
func TestUnusableChainOfHook(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ chain, rule, says string }{
		{"{ }", "", ""},
		{"{ type nat hook output priority -90; }", "", ""},
		{"{ type nat hook output priority -90; }", `counter jump VIPKIT-SERVICES`, ""},
		{"{ }", "counter accept", "nft list chain ip nat OUTPUT"},
	} {
		s := newStage(t, Options{Flavour: NFT})
		s.Apply(t, sampleSnapshot())
		want := s.effectiveRules(t)
		s.nft(t, "flush chain ip nat OUTPUT\ndelete chain ip nat OUTPUT\nadd chain ip nat OUTPUT "+c.chain+"\n")
		if c.rule != "" {
			s.nft(t, "add rule ip nat OUTPUT "+c.rule+"\n")
		}
		s.Restart(t)
		err := s.Backend.Apply(t.Context(), s.Applied, sampleSnapshot())
		if c.says == "" {
			if err != nil {
				t.Errorf("%s %s: got error %v, want none", c.chain, c.rule, err)
			}
			if got := s.effectiveRules(t); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s %s: rules: got %v, want %v", c.chain, c.rule, got, want)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s %s: got error %v, want one that contains %q", c.chain, c.rule, err, c.says)
		}
	}
}
