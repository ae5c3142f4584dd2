package xtables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testenv"
)

// difference returns the operations from the objects that some operations add to those that
// other operations add.
func difference(from, to []Op) (ops []Op) {
	was, is := map[Key]string{}, map[Key]string{}
	for _, o := range from {
		was[o.Key] = o.Value
	}
	for _, o := range to {
		is[o.Key] = o.Value
	}
	for k, v := range is {
		switch old, there := was[k]; {
		case !there:
			ops = append(ops, Op{Kind: backends.Add, Key: k, Value: v})
		case old != v:
			ops = append(ops, Op{Kind: backends.Replace, Key: k, Value: v})
		}
	}
	for k, v := range was {
		if _, there := is[k]; !there {
			ops = append(ops, Op{Kind: backends.Remove, Key: k, Value: v})
		}
	}
	return ops
}

// commit commits the plan of an adoption for requested operations.
func (m model) commit(t *testing.T, a *adoption, requested []Op) {
	t.Helper()
	ops := a.plan(requested)
	text := string(scriptOf(t, ops).text)
	if err := m.restore(text); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	a.record(requested, ops)
}

// withoutOne removes the operations of one service port, if there is one.
func withoutOne(r *rand.Rand, load [][]Op) [][]Op {
	if len(load) < 2 {
		return load
	}
	at := 1 + r.IntN(len(load)-1)
	return slices.Delete(slices.Clone(load), at, at+1)
}

// After a full apply in which a service port was refused, the rules of that port are removed,
// and later changes result in the wanted rules.
func TestChangesAfterARefusal(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	n := newNames("vipkit")
	for step := range 300 {
		m := model{{NAT, "PREROUTING"}: {"-j CNI-HOSTPORT"}, {NAT, "CNI-HOSTPORT"}: {"-j RETURN"}}
		testenv.NoError(t, m.restore(string(scriptOf(t, slices.Concat(randomLoad(t, r)...)).text)))
		damage(r, m)
		m[chainRef{NAT, "PREROUTING"}] = []string{"-j CNI-HOSTPORT"}
		requested := randomLoad(t, r)
		accepted := withoutOne(r, requested)
		a := newAdoption(n, m.seen(n), nil, slices.Concat(requested...))
		for _, part := range accepted {
			m.commit(t, a, part)
		}
		if err := m.restore(string(scriptOf(t, a.unrequested()).text)); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		have := slices.Concat(accepted...)
		for range 4 {
			fresh := model{}
			testenv.NoError(t, fresh.restore(string(scriptOf(t, have).text)))
			if diff := cmp.Diff(state(fresh, n), state(m, n)); diff != "" {
				t.Fatalf("step %d: rules (-first load +changed):\n%s", step, diff)
			}
			next := slices.Concat(randomLoad(t, r)...)
			ops := difference(have, next)
			if err := m.restore(string(scriptOf(t, rewrite(ops, manyRemoved(ops), m.seen(n))).text)); err != nil {
				t.Fatalf("step %d: a change: %v", step, err)
			}
			have = next
		}
	}
}

// A chain with rules in another order, or with too many others, is rewritten at once. A chain
// with few others gets single operations.
func TestAdoptionPlans(t *testing.T) {
	t.Parallel()
	n := newNames("vipkit")
	services := chainRef{Filter, "VIPKIT-SERVICES"}
	front, back := func(rule string) Op { return Op{Key: Key{Table: Filter, Chain: services.name, Rule: rule}} },
		func(rule string) Op { return Op{Key: Key{Table: Filter, Chain: services.name, Rule: rule, Back: true}} }
	chain := Op{Key: Key{Table: Filter, Chain: services.name}}
	const more = `-d 192.0.2.1/32 -p tcp -m comment --comment "a/b has no endpoints" -m tcp --dport 1 -j REJECT --reject-with icmp-port-unreachable`
	var extra []string
	for i := range ManyChanges + 1 {
		extra = append(extra, "-d 192.0.2.1/32 -p tcp -m tcp --dport "+strings.Repeat("1", i+1)+" -j DROP")
	}
	rewritten := func(rules ...string) Op {
		return Op{Kind: backends.Replace, Key: Key{Table: Filter, Chain: services.name, Back: true}, Value: Lines(rules)}
	}
	for _, c := range []struct {
		what      string
		found     []string
		requested []Op
		want      []Op
	}{
		{"as wanted", []string{"a", "b"}, []Op{chain, front("a"), back("b")}, nil},
		{"one own rule too many", []string{"a", more, "b"}, []Op{chain, front("a"), back("b")}, []Op{{Kind: backends.Remove, Key: front(more).Key}}},
		{"one foreign rule", []string{"a", "-s 192.0.2.1/32 -j DROP", "b"}, []Op{chain, front("a"), back("b")}, []Op{rewritten("a", "b")}},
		{"an empty rule", []string{"a", "", "b"}, []Op{chain, front("a"), back("b")}, []Op{rewritten("a", "b")}},
		{"in the wrong halves", []string{"b", "a"}, []Op{chain, front("a"), back("b")}, []Op{rewritten("a", "b")}},
		{"in the wrong halves, and one missing", []string{"b", "a"}, []Op{chain, front("a"), back("b"), front("c")}, []Op{front("c"), rewritten("a", "c", "b")}},
		{"twice", []string{"a", "a", "b"}, []Op{chain, front("a"), back("b")}, []Op{rewritten("a", "b")}},
		{"with a rule that cannot be removed", []string{"a", "x\ny", "b"}, []Op{chain, front("a"), back("b")}, []Op{rewritten("a", "b")}},
		{"with many rules too many", append([]string{"a"}, extra...), []Op{chain, front("a")}, []Op{rewritten("a")}},
		{"with few rules too many", append([]string{"a"}, extra[0]), []Op{chain, front("a")}, []Op{{Kind: backends.Remove, Key: front(extra[0]).Key}}},
	} {
		got := newAdoption(n, saved{services: c.found}, nil, c.requested).plan(c.requested)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(Key{})); diff != "" {
			t.Errorf("%s: operations (-want +got):\n%s", c.what, diff)
		}
	}
}

// A chain or rule that another part replaces serves until that part is committed. What is not
// wanted is removed after all parts.
func TestAdoptionInParts(t *testing.T) {
	t.Parallel()
	n := newNames("vipkit")
	name := func(kind string, number int) string { return n.of(kind, "a/b", number) }
	services := chainRef{NAT, "VIPKIT-SERVICES"}
	const to = "-d 192.0.2.1/32 -p tcp -m tcp --dport 80 -j "
	static := Op{Key: Key{Table: NAT, Chain: services.name}}
	external := Op{Key: Key{Table: NAT, Chain: name(prefixExternal, 0)}, Value: "-j RETURN\n"}
	rule := Op{Key: Key{Table: NAT, Chain: services.name, Rule: to + external.Key.Chain}}
	last := Op{Key: Key{Table: NAT, Chain: services.name, Rule: "-j RETURN", Back: true}}
	for what, extra := range map[string]int{"few rules": 0, "many rules": ManyChanges} {
		found := saved{
			services:                       {to + name(prefixFirewall, 0), "-j RETURN"},
			{NAT, external.Key.Chain}:      {"-j " + name(prefixFirewall, 0)},
			{NAT, name(prefixFirewall, 0)}: {"-j " + name(prefixCluster, 0)},
			{NAT, name(prefixCluster, 0)}:  {"-j RETURN"},
		}
		first := []Op{static, last}
		for i := range extra {
			first = append(first, Op{Key: Key{Table: NAT, Chain: services.name, Rule: fmt.Sprintf("-d 192.0.2.%d/32 -j RETURN", 2+i)}})
		}
		m := model(maps.Clone(found))
		a := newAdoption(n, found, nil, append(slices.Clone(first), external, rule))
		before := maps.Clone(m)
		m.commit(t, a, first)
		for ref, rules := range before {
			if ref != services && !slices.Equal(rules, m[ref]) {
				t.Errorf("%s: after the first part, chain %s: got %q, want %q", what, ref.name, m[ref], rules)
			}
		}
		got := m[services]
		if len(got) != extra+2 || !slices.Contains(got, before[services][0]) || got[len(got)-1] != last.Key.Rule {
			t.Errorf("%s: after the first part: got rules %q, want %d, with %q, and %q last", what, got, extra+2, before[services][0], last.Key.Rule)
		}
		m.commit(t, a, []Op{external, rule})
		if got := m[services]; got[0] != rule.Key.Rule || !slices.Contains(got, before[services][0]) {
			t.Errorf("%s: after all parts: got rules %q, want first %q, and still %q", what, got, rule.Key.Rule, before[services][0])
		}
		testenv.NoError(t, m.restore(string(scriptOf(t, a.unrequested()).text)))
		if got := m[services]; len(got) != extra+2 || slices.Contains(got, before[services][0]) || len(m) != 2 {
			t.Errorf("%s: in the end: got %d chains, and rules %q, want 2, and %d", what, len(m), got, extra+2)
		}
	}
}
