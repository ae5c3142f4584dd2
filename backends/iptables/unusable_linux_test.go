package iptables

import (
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// The chains that iptables cannot use: OUTPUT with another hook, or with none.
const (
	otherHook = "flush chain @TABLE OUTPUT\ndelete chain @TABLE OUTPUT\nadd chain @TABLE OUTPUT { type filter hook output priority 7; }\n"
	noHook    = "flush chain @TABLE OUTPUT\ndelete chain @TABLE OUTPUT\nadd chain @TABLE OUTPUT\n"
)

// After another program has made a chain that iptables cannot use, each other tampering is still
// possible or refused, and the backend repairs the rules or says what to remove.
func TestTamperingBesideUnusableChain(t *testing.T) {
	for table, unusable := range map[string]string{"nat": otherHook, "filter": noHook} {
		v := &tamperer{stage: newStage(t, Options{Flavour: NFT}), r: testenv.Random(t)}
		v.Apply(t, sampleSnapshot())
		want := v.effectiveRules(t)
		kinds := append(tamperings(), nativeTamperings()...)
		v.r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, tampering := range kinds {
			v.done = nil
			v.native(t, table, "%s", unusable) // refused while something refers to OUTPUT
			tampering(t, v)
			if !v.repairs(t, sampleSnapshot(), want) {
				t.Errorf("after\n%s", strings.Join(v.done, "\n"))
				v.begin(t, sampleSnapshot())
			}
		}
	}
}

// If something of another program refers to a chain that iptables cannot use, an Apply and Cleanup
// say so. When it is removed, the next Apply repairs the rules.
func TestUnusableChainWithReferences(t *testing.T) {
	for what, reference := range map[string][2]string{
		"a rule":                       {"add chain @TABLE foreign\nadd rule @TABLE foreign jump OUTPUT", "delete chain @TABLE foreign"},
		"a map":                        {"add map @TABLE foreign { type ipv4_addr : verdict; }\nadd element @TABLE foreign { 192.0.2.1 : jump OUTPUT }", "delete map @TABLE foreign"},
		"a rule, beside one in OUTPUT": {"add chain @TABLE foreign\nadd rule @TABLE foreign jump OUTPUT\nadd rule @TABLE OUTPUT counter", "flush chain @TABLE OUTPUT"},
	} {
		for _, table := range []string{"nat", "filter"} {
			v := &tamperer{stage: newStage(t, Options{Flavour: NFT}), r: testenv.Random(t)}
			v.Apply(t, sampleSnapshot())
			want := v.effectiveRules(t)
			if !v.native(t, table, "%s%s", noHook, reference[0]) {
				t.Fatalf("%s: making the chain failed", what)
			}
			for name, err := range map[string]error{
				"Apply":   v.Backend.Apply(t.Context(), proxy.Snapshot{}, sampleSnapshot()),
				"Cleanup": v.Backend.Cleanup(t.Context()),
			} {
				if err == nil || !strings.Contains(err.Error(), "iptables cannot use") || !strings.Contains(err.Error(), "remove these") || !strings.Contains(err.Error(), "ip "+table) {
					t.Errorf("%s refers to OUTPUT: %s: got error %v, want one that says what to remove from table ip %s", what, name, err, table)
				}
			}
			v.native(t, table, "%s", reference[1])
			if !v.repairs(t, sampleSnapshot(), want) {
				t.Errorf("%s that referred to OUTPUT was removed: the rules are not repaired", what)
			}
		}
	}
}
