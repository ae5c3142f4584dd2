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
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// vandal changes what is in the kernel, as somebody else might. What the kernel or a
// program refuses is no matter: something else is tried next.
type vandal struct {
	*stage
	r *rand.Rand
	// family is "" for IPv4 and "6" for IPv6.
	family string
	done   []string
	// known are the rules that were there when they could be listed last.
	known []standing
}

// standing is a rule where it stands: the text of a chain's rule number n, from 1.
type standing struct {
	table, chain, text string
	n                  int
}

// rules lists the rules of our chains, and the jumps to them. What somebody has put there
// may keep iptables from doing so.
func (v *vandal) rules(t *testing.T) (all []standing) {
	t.Helper()
	path, err := lookUp("ip" + v.family + "tables-" + string(v.Options.Flavour) + "-save")
	if err != nil {
		t.Fatal(err)
	}
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
			all = append(all, standing{table, chain, rule, number[chain]})
		}
	}
	v.known = all
	return all
}

// try runs a program of the flavour, and reports whether it succeeded.
func (v *vandal) try(t *testing.T, input, name string, args ...string) bool {
	t.Helper()
	if name != "nft" {
		stem, what, _ := strings.Cut(name, "-")
		name = strings.TrimSuffix("ip"+v.family+strings.TrimPrefix(stem, "ip")+"-"+string(v.Options.Flavour)+"-"+what, "-")
	}
	path, err := lookUp(name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = netnstest.Run(t, v.NS, input, path, args...)
	v.done = append(v.done, fmt.Sprintf("%s %q %q: %v", name, args, input, err == nil))
	return err == nil
}

// restore has iptables-restore carry out lines in a table.
func (v *vandal) restore(t *testing.T, table string, lines ...string) bool {
	t.Helper()
	return v.try(t, "*"+table+"\n"+strings.Join(lines, "\n")+"\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
}

// native has nft carry out commands in a table.
func (v *vandal) native(t *testing.T, table, format string, args ...any) bool {
	t.Helper()
	in := "ip" + v.family + " " + table
	return v.try(t, strings.ReplaceAll(fmt.Sprintf(format, args...), "@TABLE", in)+"\n", "nft", "-f", "-")
}

// tamper does one of all things.
func (v *vandal) tamper(t *testing.T) {
	t.Helper()
	kinds := tamperings()
	if v.Options.Flavour == NFT {
		kinds = append(kinds, nativeTamperings()...)
	}
	kinds[v.r.IntN(len(kinds))](t, v)
}

// any gives one of all rules; there is none where somebody has removed everything.
func (v *vandal) any(t *testing.T) (standing, bool) {
	t.Helper()
	all := v.rules(t)
	if len(all) == 0 {
		return standing{}, false
	}
	return all[v.r.IntN(len(all))], true
}

// variants are snapshots that follow each other at random.
func variants() []proxy.Snapshot {
	all := slices.Collect(sampleWorld().All())
	more := append(slices.Clone(all), newPort(v1.IPv4Protocol, 7, 3), newPort(v1.IPv6Protocol, 7, 1))
	return []proxy.Snapshot{
		proxy.NewSnapshot(stagetest.Node(), all...), proxy.NewSnapshot(stagetest.Node(), more...),
		proxy.NewSnapshot(stagetest.Node(), all[2:]...), proxy.NewSnapshot(stagetest.Node(), append([]*proxy.ServicePort{moved(all[0], 500)}, more[3:]...)...),
	}
}

// Whatever others do to our chains, and to the jumps to them, a change goes on or says
// that the dataplane is lost, and the next look at everything repairs it.
func TestTampering(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		v := &vandal{stage: s, r: testenv.Random(t)}
		worlds := variants()
		want := make([]map[string][]string, len(worlds))
		for i, w := range worlds {
			fresh := newStage(t, s.Options)
			fresh.Apply(t, w)
			want[i] = fresh.truth(t)
		}
		for round := range 120 {
			v.begin(t, worlds[v.r.IntN(len(worlds))])
			for range 1 + v.r.IntN(3) {
				v.family = []string{"", "6"}[v.r.IntN(2)]
				v.tamper(t)
			}
			next := v.r.IntN(len(worlds))
			if !v.mends(t, worlds[next], want[next]) || round%4 == 0 && !v.cleansUp(t) {
				t.Errorf("round %d, after\n%s", round, strings.Join(v.done, "\n"))
			}
		}
	})
}

// begin puts everything in order, in a namespace that nobody has touched.
func (v *vandal) begin(t *testing.T, w proxy.Snapshot) {
	t.Helper()
	v.done = nil
	v.stage = newStage(t, v.Options)
	v.Apply(t, w)
}

// cleansUp tampers once more, has everything removed, and reports whether it is, but for
// chains that others use.
func (v *vandal) cleansUp(t *testing.T) bool {
	t.Helper()
	v.tamper(t)
	err := v.Backend.Cleanup(t.Context())
	if err != nil && !strings.Contains(err.Error(), "rules of others jump to") {
		t.Errorf("Cleanup: got error %v, want none", err)
		return false
	}
	left := v.truth(t)
	if len(left) > 0 {
		t.Errorf("after Cleanup there is %v", left)
	}
	return len(left) == 0
}

// mends goes on after tampering, as a Runner does, and reports whether everything is
// as it should be then, if want says how.
func (v *vandal) mends(t *testing.T, next proxy.Snapshot, want map[string][]string) bool {
	t.Helper()
	err := v.Backend.Apply(t.Context(), v.Applied, next)
	if err != nil && !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("a change: got error %v, want none or %v", err, proxy.ErrDataplaneLost)
	}
	v.Applied = proxy.Snapshot{}
	if err := v.Backend.Apply(t.Context(), v.Applied, next); err != nil {
		t.Errorf("a look at everything: got error %v, want none", err)
		return false
	}
	v.Applied = next
	if want == nil {
		return true
	}
	diff := cmp.Diff(want, v.truth(t))
	if diff != "" {
		t.Errorf("what there is (-fresh +repaired):\n%s", diff)
	}
	return diff == "" && (err == nil || errors.Is(err, proxy.ErrDataplaneLost))
}

// No rule that anybody can put into one of our chains, in front or behind, or of the
// kernel's, keeps a Service from being removed, or from being served again. Of all these,
// some are tried each time.
func TestForeignRuleAnywhere(t *testing.T) {
	for _, flavour := range flavours() {
		t.Run(string(flavour), func(t *testing.T) {
			v := &vandal{stage: newStage(t, Options{Flavour: flavour, Families: []v1.IPFamily{v1.IPv4Protocol}}), r: testenv.Random(t)}
			all := world(v1.IPv4Protocol, 2, 2)
			one, two := proxy.NewSnapshot(stagetest.Node(), all[0]), proxy.NewSnapshot(stagetest.Node(), all...)
			v.Apply(t, two)
			want := v.truth(t)
			inserted := 0
			for _, at := range [][2]string{
				{"nat", "VIPKIT-SERVICES"}, {"filter", "VIPKIT-SERVICES"}, {"nat", newNames("vipkit").of(prefixCluster, all[0].Name, 0)}, {"nat", "PREROUTING"}, {"filter", "INPUT"},
			} {
				for how, bodies := range map[string]string{"-I": foreignBodies, "-A": foreignBodies, "insert": nativeBodies, "add": nativeBodies} {
					for body := range strings.SplitSeq(bodies, "\n") {
						v.done = nil
						switch {
						case body != "drop" && v.r.IntN(4) > 0:
							continue
						case bodies == foreignBodies && v.restore(t, at[0], how+" "+at[1]+" "+body):
						case bodies == nativeBodies && flavour == NFT && v.native(t, at[0], "%s rule @TABLE %s %s", how, at[1], body):
						default:
							continue
						}
						inserted++
						if !v.mends(t, one, nil) || !v.mends(t, two, want) {
							t.Fatalf("after %q", v.done)
						}
						v.try(t, "*"+at[0]+"\n-F "+at[1]+"\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
						v.Applied = proxy.Snapshot{}
						v.Apply(t, two)
					}
				}
			}
			t.Logf("%d rules were inserted", inserted)
		})
	}
}
