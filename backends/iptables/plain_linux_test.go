package iptables

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/proxy"
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

// A chain that has the name of one of the kernel's own chains, and that iptables cannot use, is named in an
// error. Once it is removed, an Apply repairs the rules.
func TestUnusableChainOfHook(t *testing.T) {
	t.Parallel()
	for _, chain := range []string{"{ }", "{ type nat hook output priority -90; }"} {
		s := newStage(t, Options{Flavour: NFT})
		s.Apply(t, sampleSnapshot())
		want := s.effectiveRules(t)
		const remove = "flush chain ip nat OUTPUT\ndelete chain ip nat OUTPUT\n"
		s.nft(t, remove+"add chain ip nat OUTPUT "+chain+"\n")
		err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, sampleSnapshot())
		if err == nil || !strings.Contains(err.Error(), "chain OUTPUT") || errors.As(err, new(proxy.PortErrors)) {
			t.Errorf("%s: got error %v, want one that names the chain, and no PortErrors", chain, err)
		}
		s.nft(t, remove)
		s.Applied = proxy.Snapshot{}
		s.Apply(t, sampleSnapshot())
		if diff := cmp.Diff(want, s.effectiveRules(t)); diff != "" {
			t.Errorf("%s: rules (-first load +repaired):\n%s", chain, diff)
		}
	}
}
