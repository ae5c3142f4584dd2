package iptables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// hookBodies are rules of nft that the kernel accepts in any chain without jumps to it, but
// only in chains that some of its own chains jump to.
const hookBodies = `socket transparent 1 return
synproxy mss 1460 wscale 7
fib daddr oif 1 return
fib saddr . iif oif missing drop
meta pkttype set host
osf name "Linux" return
tcp option maxseg size set rt mtu
ipsec in reqid 1 return
ipsec out reqid 1 return
masquerade
reject`

// hookMatches are such rules of iptables.
const hookMatches = `-m owner --uid-owner 0 -j RETURN
-m policy --dir out --pol ipsec -j RETURN
-p tcp -j SYNPROXY --mss 1460`

// hooksOf returns those of the kernel's own chains that have jumps to the identity's chains.
func hooksOf(table string) []string {
	if table == "filter" {
		return []string{"INPUT", "FORWARD", "OUTPUT"}
	}
	return []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}
}

// detach removes all jumps to the identity's chains from the kernel's own chains of a table, and
// reports whether it could: iptables refuses that if one of these chains is not as it makes them.
func (v *tamperer) detach(t *testing.T, table string) bool {
	t.Helper()
	return v.restore(t, table, "-F "+strings.Join(hooksOf(table), "\n-F "))
}

// afterDetaching returns a tampering that adds rules which are invalid in some hooks, after it
// has removed all jumps from the kernel's own chains of the table or of one of them.
func afterDetaching(bodies string, insert func(t *testing.T, v *tamperer, at ruleAt, body string)) tampering {
	return func(t *testing.T, v *tamperer) {
		t.Helper()
		at, ok := v.any(t)
		if hooks := hooksOf(at.table); ok && v.r.IntN(2) == 0 {
			v.restore(t, at.table, "-F "+hooks[v.r.IntN(len(hooks))])
		} else if ok {
			v.detach(t, at.table)
		}
		for range 1 + v.r.IntN(3) {
			insert(t, v, at, v.one(bodies))
		}
	}
}

// isRefused reports whether the kernel refuses jumps to a chain from some of its own chains.
func (v *tamperer) isRefused(t *testing.T, table, chain string) bool {
	t.Helper()
	for _, hook := range hooksOf(table) {
		if !v.restore(t, table, "-I "+hook+" -j "+chain) {
			return true
		}
		if !v.restore(t, table, "-D "+hook+" -j "+chain) {
			t.Fatalf("removing a jump from %s: failed", hook)
		}
	}
	return false
}

// tampered is a chain with rules of another program, and the lines that prepare it.
type tampered struct{ table, chain, prepare string }

// Rules of other programs that are invalid in the hooks of the jumps to their chain do not
// prevent a full apply, whether the jumps exist or not.
func TestRulesInvalidInHooks(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		v := &tamperer{stage: s, r: testenv.Random(t)}
		s.Apply(t, sampleSnapshot())
		want := s.effectiveRules(t)
		for fam, family := range map[v1.IPFamily]string{v1.IPv4Protocol: "", v1.IPv6Protocol: "6"} {
			v.family = family
			cluster := newNames("vipkit").of(prefixCluster, newPort(fam, 0, 3).Name, 0)
			const unwanted = "VIPKIT-SVC-AAAAAAAAAAAAAAAA"
			for _, c := range []tampered{
				{"nat", "VIPKIT-SERVICES", ""},
				{"nat", "VIPKIT-POSTROUTING", ""},
				{"nat", cluster, ""},
				{"nat", unwanted, ":" + unwanted + " -\n-I VIPKIT-SERVICES -j " + unwanted},
				{"nat", "FOREIGN", ":FOREIGN -\n-I VIPKIT-SERVICES -j FOREIGN"},
				{"filter", "VIPKIT-SERVICES", ""},
				{"filter", "VIPKIT-SERVICES", "-F VIPKIT-PROXY-FIREWALL"},
				{"filter", "VIPKIT-NODEPORTS", ""},
				{"filter", "VIPKIT-PROXY-FIREWALL", ""},
				{"filter", "VIPKIT-FORWARD", ""},
				{"filter", unwanted, ":" + unwanted + " -\n-A VIPKIT-SERVICES -j " + unwanted},
				{"filter", "FOREIGN", ":FOREIGN -\n-A VIPKIT-SERVICES -j FOREIGN"},
			} {
				v.done = nil
				if !v.detach(t, c.table) {
					t.Fatalf("%v: emptying the chains %v failed", c, hooksOf(c.table))
				}
				if c.prepare != "" && !v.restore(t, c.table, c.prepare) {
					t.Fatalf("%v: preparing the chain failed", c)
				}
				inserted := 0
				for body := range strings.SplitSeq(hookMatches, "\n") {
					if v.restore(t, c.table, "-I "+c.chain+" "+body) {
						inserted++
					}
				}
				for body := range strings.SplitSeq(hookBodies, "\n") {
					if v.Options.Flavour == NFT && v.native(t, c.table, "insert rule @TABLE %s %s", c.chain, body) {
						inserted++
					}
				}
				if inserted == 0 || !v.isRefused(t, c.table, c.chain) {
					t.Errorf("IPv%s %v: jumps to a chain with %d rules of other programs: got none refused, want some", family, c, inserted)
				}
				if !v.repairs(t, sampleSnapshot(), want) {
					t.Errorf("IPv%s %v: not repaired, after\n%s", family, c, strings.Join(v.done, "\n"))
					s.Restart(t)
					v.try(t, "*"+c.table+"\n-F\n-X\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
					s.Apply(t, sampleSnapshot())
				}
				v.try(t, "*"+c.table+"\n-F FOREIGN\n-X FOREIGN\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
			}
		}
	})
}

// A program may list less than the kernel has, as other versions of it do. If the kernel then refuses the
// jumps because of a rule that the listing hides, the rules are read from nf_tables, and repaired.
func TestRuleThatTheListingHides(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT})
	s.Apply(t, sampleSnapshot())
	want := s.effectiveRules(t)
	stubProgram(t, s, "save", `"$real" "$@" | grep -v "hidden"; exit`)
	v := &tamperer{stage: s, r: testenv.Random(t)}
	for _, c := range []struct{ table, chain, emptied string }{
		{"nat", "VIPKIT-SERVICES", "-F PREROUTING"},
		{"nat", "VIPKIT-SERVICES", "-F PREROUTING\n-F INPUT\n-F OUTPUT\n-F POSTROUTING"},
		{"filter", "VIPKIT-SERVICES", "-F FORWARD"},
		{"filter", "VIPKIT-SERVICES", "-F INPUT\n-F FORWARD\n-F OUTPUT"},
		{"filter", "VIPKIT-PROXY-FIREWALL", "-F FORWARD"},
		{"filter", "VIPKIT-PROXY-FIREWALL", "-F INPUT\n-F FORWARD"},
	} {
		if !v.restore(t, c.table, "-F INPUT\n"+c.emptied) || !v.restore(t, c.table, "-I "+c.chain+" -m comment --comment hidden -m owner --uid-owner 0 -j RETURN") {
			t.Fatalf("%v: preparing the chain failed", c)
		}
		if err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, sampleSnapshot()); err != nil {
			t.Errorf("%v: beside a rule that the listing hides: got error %v, want none", c, err)
		}
		if diff := cmp.Diff(want, s.effectiveRules(t)); diff != "" {
			t.Errorf("%v: rules (-first load +repaired):\n%s", c, diff)
		}
	}
}
