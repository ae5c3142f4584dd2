package xtables

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// randomLoad returns the operations of a first load of a random snapshot: for the node, and
// for each service port.
func randomLoad(t *testing.T, r *rand.Rand) [][]Op {
	t.Helper()
	renderer := newNames()
	node := &proxy.Node{
		NodePorts:    proxy.NodePortAddresses{All: r.IntN(2) == 0, Prefixes: snapshots.Prefixes("172.18.0.2/32")},
		LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes("10.0.0.0/9", "10.128.0.0/9")[:r.IntN(3)]},
	}
	all := [][]Op{stagetest.Additions(renderer.render(backends.Env{Node: node}, nil, nil))}
	for i := range 5 {
		if r.IntN(3) > 0 {
			all = append(all, stagetest.Additions(renderer.render(backends.Env{Node: node}, stagetest.RandomPort(r, i), nil)))
		}
	}
	return all
}

// damage changes rules as another program might.
func damage(r *rand.Rand, m model) {
	for ref, rules := range m {
		switch {
		case r.IntN(4) > 0 || len(rules) == 0 || !strings.HasPrefix(ref.name, "VIPKIT-") && !isHook(ref.name):
		case r.IntN(3) == 0:
			m[ref] = slices.Delete(slices.Clone(rules), 0, 1)
		case r.IntN(2) == 0:
			m[ref] = append(slices.Clone(rules), rules[0])
		default:
			m[ref] = slices.Clone(rules)
			slices.Reverse(m[ref])
		}
	}
}

// state returns the rules of the identity's chains. It sorts the rules of open chains, whose
// order has no meaning.
func state(m model, n Names) map[string][]string {
	out := map[string][]string{}
	e := m.seen(n)
	maps.Copy(e.chains, e.jumps)
	for ref, rules := range e.chains {
		if n.IsOpen(ref.name) {
			slices.Sort(rules)
		}
		out[ref.table.String()+" "+ref.name] = append([]string{}, rules...)
	}
	return out
}

func scriptOf(ops []Op) *script { return newScript(ops, 0) }

// write carries out operations.
func (m model) write(t *testing.T, ops []Op) {
	t.Helper()
	text := Script(ops)
	if err := m.restore(text); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// adopt makes what exists what operations add. It returns what it has done.
func (m model) adopt(t *testing.T, n Names, wanted []Op, adds bool) []Op {
	t.Helper()
	ops, unwanted := m.seen(n).plan(n, wanted, adds)
	m.write(t, ops)
	var removals []Op
	for _, ref := range unwanted {
		removals = append(removals, Op{Kind: backends.Remove, Key: ref.key()})
	}
	m.write(t, removals)
	return slices.Concat(ops, removals)
}

func checkForeign(t *testing.T, m model, foreign map[chainRef][]string) {
	t.Helper()
	for ref, rules := range foreign {
		if ref.name != "PREROUTING" && !slices.Equal(m[ref], rules) {
			t.Fatalf("foreign chain %s: got %q, want %q", ref.name, m[ref], rules)
		}
	}
	if !slices.Contains(m[chainRef{NAT, "PREROUTING"}], "-j CNI-HOSTPORT") {
		t.Fatal("foreign jump: got none, want one")
	}
}

// From any existing rules, adoption makes the wanted ones and keeps foreign ones. A second adoption then does nothing. Adding removes nothing.
func TestAdoption(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	n := newNames()
	foreign := map[chainRef][]string{
		{NAT, "PREROUTING"}: {"-j CNI-HOSTPORT"}, {NAT, "CNI-HOSTPORT"}: {"-j RETURN"}, {Filter, "KUBE-SERVICES"}: {"-j DROP"},
	}
	for step := range 300 {
		m := model{}
		maps.Copy(m, foreign)
		m.write(t, slices.Concat(randomLoad(t, r)...))
		if r.IntN(2) == 0 {
			damage(r, m)
			m[chainRef{NAT, "PREROUTING"}] = append([]string{"-j CNI-HOSTPORT"}, slices.DeleteFunc(
				m[chainRef{NAT, "PREROUTING"}], func(s string) bool { return s == "-j CNI-HOSTPORT" })...)
		}
		want := slices.Concat(randomLoad(t, r)...)
		m.adopt(t, n, want, false)
		fresh := model{}
		fresh.write(t, want)
		if diff := cmp.Diff(state(fresh, n), state(m, n)); diff != "" {
			t.Fatalf("step %d: rules (-first load +adopted):\n%s", step, diff)
		}
		if again := m.adopt(t, n, want, false); len(again) > 0 {
			t.Fatalf("step %d: operations of a second adoption: got %v, want none", step, again)
		}
		checkForeign(t, m, foreign)
		if added := m.adopt(t, n, nil, true); len(added) > 0 {
			t.Fatalf("step %d: operations that add nothing: got %v, want none", step, added)
		}
		m.adopt(t, n, nil, false)
		if left := state(m, n); len(left) > 0 {
			t.Fatalf("step %d: rules after cleanup: got %v, want none", step, left)
		}
	}
}

// Until table nat is written, an open chain of table filter loses no rule.
func TestRejectionsStay(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	n := newNames()
	for step := range 300 {
		m := model{}
		m.write(t, slices.Concat(randomLoad(t, r)...))
		damage(r, m)
		before, want := m.clone(), slices.Concat(randomLoad(t, r)...)
		ops, _ := m.seen(n).plan(n, want, false)
		text, _, writesNAT := strings.Cut(string(scriptOf(ops).text), "*nat\n")
		if !writesNAT {
			continue
		}
		testenv.NoError(t, m.restore(text))
		for ref, rules := range before {
			for _, rule := range rules {
				if ref.table == Filter && n.Owns(ref.table, ref.name) && n.IsOpen(ref.name) && !slices.Contains(m[ref], rule) {
					t.Fatalf("step %d: before table nat is written, chain %s of filter: got %q, want %q to stay", step, ref.name, m[ref], rule)
				}
			}
		}
	}
}

// An open chain that is not as wanted is written as a whole, in table filter after it got the missing rules. The
// order within its halves does not matter.
func TestPlans(t *testing.T) {
	t.Parallel()
	n := newNames()
	ref := chainRef{Filter, "VIPKIT-SERVICES"}
	wanted := written(t, "+ filter VIPKIT-SERVICES", "+ filter VIPKIT-SERVICES < a", "+ filter VIPKIT-SERVICES < b", "+ filter VIPKIT-SERVICES > y", "+ filter VIPKIT-SERVICES > z")
	whole := Op{Kind: backends.Replace, Key: ref.key(), Value: "a\nb\ny\nz\n"}
	whole.Key.Back = true // after table nat
	for _, c := range []struct {
		what  string
		found []string
		adds  bool
		want  []Op
	}{
		{"as wanted", []string{"a", "b", "y", "z"}, false, nil},
		{"in another order", []string{"b", "a", "z", "y"}, false, nil},
		{"in the wrong halves", []string{"a", "y", "b", "z"}, false, []Op{whole}},
		{"in the wrong halves, one missing", []string{"a", "y", "b"}, false, []Op{wanted[4], whole}},
		{"in the wrong halves, one missing", []string{"a", "y", "b"}, true, wanted[4:]},
		{"twice", []string{"a", "a", "b", "y", "z"}, false, []Op{whole}},
		{"twice, one missing", []string{"a", "a", "y", "z"}, false, []Op{wanted[2], whole}},
		{"one more", []string{"a", "b", "y", "c", "z"}, false, []Op{whole}},
		{"another one", []string{"a", "c", "y", "z"}, false, []Op{wanted[2], whole}},
		{"another one", []string{"a", "c", "y", "z"}, true, wanted[2:3]},
		{"empty", nil, true, wanted[1:]},
	} {
		got, unwanted := model{ref: c.found}.seen(n).plan(n, wanted, c.adds)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(Key{}), cmpopts.EquateEmpty()); diff != "" || len(unwanted) > 0 {
			t.Errorf("%s (%t): unwanted %v, operations (-want +got):\n%s", c.what, c.adds, unwanted, diff)
		}
	}
	unread := &existing{chains: saved{ref: nil}, isUnread: true}
	got, _ := unread.plan(n, wanted, false)
	testenv.Same(t, append(wanted[1:], whole), got, "operations on a chain with unknown rules")
}

// A chain that is not open is written if its text differs. A chain that is not wanted is emptied, in table filter after
// the other tables are written, unless everything goes.
func TestPlansOfFixedChains(t *testing.T) {
	t.Parallel()
	n := newNames()
	ref := chainRef{Filter, "VIPKIT-FORWARD"}
	wanted, others := written(t, "+ filter VIPKIT-FORWARD : a"), written(t, "+ filter VIPKIT-REJECT : c")
	empty := Op{Kind: backends.Replace, Key: ref.key()}
	late := empty
	late.Key.Back = true
	replaced := wanted[0]
	replaced.Kind = backends.Replace
	for _, c := range []struct {
		found    []string
		wanted   []Op
		adds     bool
		want     []Op
		unwanted int
	}{
		{[]string{"a"}, wanted, false, nil, 0},
		{[]string{"b"}, wanted, false, []Op{replaced}, 0},
		{[]string{"b"}, others, false, []Op{others[0], late}, 1},
		{[]string{"b"}, nil, false, []Op{empty}, 1},
		{[]string{"b"}, nil, true, nil, 0},
		{nil, nil, false, nil, 1},
	} {
		got, unwanted := model{ref: c.found}.seen(n).plan(n, c.wanted, c.adds)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(Key{})); diff != "" || len(unwanted) != c.unwanted {
			t.Errorf("%v: unwanted %v, operations (-want +got):\n%s", c.found, unwanted, diff)
		}
	}
}
