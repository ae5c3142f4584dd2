package iptables

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// tamperer tampers with the rules in the kernel, as another program might. Tampering that the
// kernel or a program refuses does not matter: other kinds follow.
type tamperer struct {
	*stage
	r *rand.Rand
	// family is "" for IPv4 and "6" for IPv6.
	family string
	done   []string
	// known are the rules of the last listing that succeeded.
	known []ruleAt
}

// ruleAt is a rule with its position: the text of rule number n of a chain, from 1.
type ruleAt struct {
	table, chain, text string
	n                  int
}

// rules lists the rules of the identity's chains, and the jumps to them. It returns the last
// listing if foreign rules keep iptables from listing.
func (v *tamperer) rules(t *testing.T) (all []ruleAt) {
	t.Helper()
	path, err := xtables.LookUp("ip" + v.family + "tables-" + string(v.Options.Flavour) + "-save")
	testenv.NoError(t, err)
	text, err := netnstest.Run(t, v.NS, "", path)
	if err != nil {
		return v.known
	}
	table, number := "", map[string]int{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table, number = name, map[string]int{}
		}
		text, ok := strings.CutPrefix(line, "-A ")
		if !ok {
			continue
		}
		chain, rule, _ := strings.Cut(text, " ")
		number[chain]++
		if strings.HasPrefix(chain, "VIPKIT-") || strings.Contains(rule, " VIPKIT-") {
			all = append(all, ruleAt{table, chain, rule, number[chain]})
		}
	}
	v.known = all
	return all
}

// try runs a program of the flavour, and reports whether it succeeded.
func (v *tamperer) try(t *testing.T, input, name string, args ...string) bool {
	t.Helper()
	if name != "nft" {
		stem, what, _ := strings.Cut(name, "-")
		name = strings.TrimSuffix("ip"+v.family+strings.TrimPrefix(stem, "ip")+"-"+string(v.Options.Flavour)+"-"+what, "-")
	}
	path, err := xtables.LookUp(name)
	testenv.NoError(t, err)
	_, err = netnstest.Run(t, v.NS, input, path, args...)
	v.done = append(v.done, fmt.Sprintf("%s %q %q: %v", name, args, input, err == nil))
	return err == nil
}

// restore runs lines for a table with iptables-restore.
func (v *tamperer) restore(t *testing.T, table string, lines ...string) bool {
	t.Helper()
	return v.try(t, "*"+table+"\n"+strings.Join(lines, "\n")+"\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
}

// native runs commands for a table with nft.
func (v *tamperer) native(t *testing.T, table, format string, args ...any) bool {
	t.Helper()
	in := "ip" + v.family + " " + table
	return v.try(t, strings.ReplaceAll(fmt.Sprintf(format, args...), "@TABLE", in)+"\n", "nft", "-f", "-")
}

// tamper does one random tampering.
func (v *tamperer) tamper(t *testing.T) {
	t.Helper()
	kinds := tamperings()
	if v.Options.Flavour == NFT {
		kinds = append(kinds, nativeTamperings()...)
	}
	kinds[v.r.IntN(len(kinds))](t, v)
}

// any returns a random rule; false if there is none.
func (v *tamperer) any(t *testing.T) (ruleAt, bool) {
	t.Helper()
	all := v.rules(t)
	if len(all) == 0 {
		return ruleAt{}, false
	}
	return all[v.r.IntN(len(all))], true
}

// variants returns snapshots that follow each other in random order.
func variants() []proxy.Snapshot {
	all := slices.Collect(sampleSnapshot().All())
	more := append(slices.Clone(all), newPort(v1.IPv4Protocol, 7, 3), newPort(v1.IPv6Protocol, 7, 1))
	return []proxy.Snapshot{
		proxy.NewSnapshot(stagetest.Node(), all...), proxy.NewSnapshot(stagetest.Node(), more...),
		proxy.NewSnapshot(stagetest.Node(), all[2:]...), proxy.NewSnapshot(stagetest.Node(), append([]*proxy.ServicePort{moved(all[0], 500)}, more[3:]...)...),
	}
}

// After any tampering with own chains and the jumps to them, a change succeeds or returns
// ErrDataplaneLost, and the next full apply repairs the rules.
func TestTampering(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		v := &tamperer{stage: s, r: testenv.Random(t)}
		snapshots := variants()
		want := make([]map[string][]string, len(snapshots))
		for i, w := range snapshots {
			fresh := newStage(t, s.Options)
			fresh.Apply(t, w)
			want[i] = fresh.effectiveRules(t)
		}
		for round := range 120 {
			v.begin(t, snapshots[v.r.IntN(len(snapshots))])
			for range 1 + v.r.IntN(3) {
				v.family = []string{"", "6"}[v.r.IntN(2)]
				v.tamper(t)
			}
			next := v.r.IntN(len(snapshots))
			if !v.repairs(t, snapshots[next], want[next]) || round%4 == 0 && !v.cleansUp(t) {
				t.Errorf("round %d, after\n%s", round, strings.Join(v.done, "\n"))
			}
		}
	})
}

// begin applies a snapshot in a new namespace.
func (v *tamperer) begin(t *testing.T, w proxy.Snapshot) {
	t.Helper()
	v.done = nil
	v.stage = newStage(t, v.Options)
	v.Apply(t, w)
}

// cleansUp tampers once more, calls Cleanup, and reports whether everything is removed except
// for chains to which foreign rules jump.
func (v *tamperer) cleansUp(t *testing.T) bool {
	t.Helper()
	v.tamper(t)
	err := v.Backend.Cleanup(t.Context())
	if err != nil && !strings.Contains(err.Error(), "rules of other programs jump to") {
		t.Errorf("Cleanup: got error %v, want none", err)
		return false
	}
	left := v.effectiveRules(t)
	if len(left) > 0 {
		t.Errorf("rules after Cleanup: got %v, want none", left)
	}
	return len(left) == 0
}

// repairs applies a snapshot after tampering, as a Runner does, and reports whether the rules
// are then those of want, unless want is nil.
func (v *tamperer) repairs(t *testing.T, next proxy.Snapshot, want map[string][]string) bool {
	t.Helper()
	err := v.Backend.Apply(t.Context(), v.Applied, next)
	if err != nil && !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("a change: got error %v, want none or %v", err, proxy.ErrDataplaneLost)
	}
	v.Applied = proxy.Snapshot{}
	all := v.Backend.Apply(t.Context(), v.Applied, next)
	if all != nil {
		t.Errorf("a full apply: got error %v, want none", all)
		return false
	}
	v.Applied = next
	if want == nil {
		return true
	}
	diff := cmp.Diff(want, v.effectiveRules(t))
	if diff != "" {
		t.Errorf("rules (-first load +repaired):\n%s", diff)
	}
	return diff == "" && (err == nil || errors.Is(err, proxy.ErrDataplaneLost))
}
