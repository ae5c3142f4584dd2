package iptables

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testenv"
)

// difference gives the operations that lead from what some operations add to what
// others do.
func difference(from, to []op) (ops []op) {
	was, is := map[key]string{}, map[key]string{}
	for _, o := range from {
		was[o.Key] = o.Value
	}
	for _, o := range to {
		is[o.Key] = o.Value
	}
	for k, v := range is {
		switch old, there := was[k]; {
		case !there:
			ops = append(ops, op{Kind: backends.Add, Key: k, Value: v})
		case old != v:
			ops = append(ops, op{Kind: backends.Replace, Key: k, Value: v})
		}
	}
	for k, v := range was {
		if _, there := is[k]; !there {
			ops = append(ops, op{Kind: backends.Remove, Key: k, Value: v})
		}
	}
	return ops
}

// carryOut has an adoption do what is asked for.
func (m model) carryOut(t *testing.T, a *adoption, asked []op) {
	t.Helper()
	ops := a.plan(asked)
	text := string(scriptOf(t, ops).text)
	if err := m.restore(text); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	a.settle(asked, ops)
}

// withoutOne drops one service port of a world, if there is one.
func withoutOne(r *rand.Rand, world [][]op) [][]op {
	if len(world) < 2 {
		return world
	}
	at := 1 + r.IntN(len(world)-1)
	return slices.Delete(slices.Clone(world), at, at+1)
}

// After a look at everything in which a service port was refused, what was found is
// kept in mind: what there is of that port goes, and changes lead where they should.
func TestChangesAfterARefusal(t *testing.T) {
	r := testenv.Random(t)
	n := newNames("vipkit")
	for step := range 300 {
		m := model{{nat, "PREROUTING"}: {"-j CNI-HOSTPORT"}, {nat, "CNI-HOSTPORT"}: {"-j RETURN"}}
		if err := m.restore(string(scriptOf(t, slices.Concat(randomWorld(t, r)...)).text)); err != nil {
			t.Fatal(err)
		}
		damage(r, m)
		m[chainRef{nat, "PREROUTING"}] = []string{"-j CNI-HOSTPORT"}
		asked := randomWorld(t, r)
		accepted := withoutOne(r, asked)
		a := newAdoption(n, m.seen(n), nil, slices.Concat(asked...))
		for _, part := range accepted {
			m.carryOut(t, a, part)
		}
		rest := a.rest()
		if err := m.restore(string(scriptOf(t, rest).text)); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		a.settle(nil, rest)
		have := slices.Concat(accepted...)
		for range 4 {
			fresh := model{}
			if err := fresh.restore(string(scriptOf(t, have).text)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(state(fresh, n), state(m, n)); diff != "" {
				t.Fatalf("step %d: the rules (-fresh +changed):\n%s", step, diff)
			}
			next := slices.Concat(randomWorld(t, r)...)
			m.carryOut(t, a, difference(have, next))
			have = next
		}
	}
}

// What is found in another order, or too much of, is written anew, at once; and what is
// not to be for now stays as long as something leads there.
func TestAdoptionPlans(t *testing.T) {
	n := newNames("vipkit")
	services := chainRef{filter, "VIPKIT-SERVICES"}
	front, back := func(rule string) op { return op{Key: key{table: filter, chain: services.name, rule: rule}} },
		func(rule string) op { return op{Key: key{table: filter, chain: services.name, rule: rule, back: true}} }
	chain := op{Key: key{table: filter, chain: services.name}}
	const more = `-d 192.0.2.1/32 -p tcp -m comment --comment "a/b has no endpoints" -m tcp --dport 1 -j REJECT --reject-with icmp-port-unreachable`
	var crowd []string
	for i := range many + 1 {
		crowd = append(crowd, "-d 192.0.2.1/32 -p tcp -m tcp --dport "+strings.Repeat("1", i+1)+" -j DROP")
	}
	rewritten := func(rules ...string) op {
		return op{Kind: backends.Replace, Key: key{table: filter, chain: services.name, back: true}, Value: lines(rules)}
	}
	for _, c := range []struct {
		what  string
		found []string
		asked []op
		want  []op
	}{
		{"as it should be", []string{"a", "b"}, []op{chain, front("a"), back("b")}, nil},
		{"one rule more", []string{"a", more, "b"}, []op{chain, front("a"), back("b")}, []op{{Kind: backends.Remove, Key: front(more).Key}}},
		{"one rule more, of others", []string{"a", "-s 192.0.2.1/32 -j DROP", "b"}, []op{chain, front("a"), back("b")}, []op{rewritten("a", "b")}},
		{"a rule without anything more", []string{"a", "", "b"}, []op{chain, front("a"), back("b")}, []op{rewritten("a", "b")}},
		{"in the wrong halves", []string{"b", "a"}, []op{chain, front("a"), back("b")}, []op{rewritten("a", "b")}},
		{"in the wrong halves, and one missing", []string{"b", "a"}, []op{chain, front("a"), back("b"), front("c")}, []op{front("c"), rewritten("a", "c", "b")}},
		{"twice", []string{"a", "a", "b"}, []op{chain, front("a"), back("b")}, []op{rewritten("a", "b")}},
		{"with a rule that cannot be removed", []string{"a", "x\ny", "b"}, []op{chain, front("a"), back("b")}, []op{rewritten("a", "b")}},
		{"with many rules more", append([]string{"a"}, crowd...), []op{chain, front("a")}, []op{rewritten("a")}},
		{"with rules more, but not many", append([]string{"a"}, crowd[0]), []op{chain, front("a")}, []op{{Kind: backends.Remove, Key: front(crowd[0]).Key}}},
	} {
		got := newAdoption(n, saved{services: c.found}, nil, c.asked).plan(c.asked)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(key{})); diff != "" {
			t.Errorf("%s: the operations (-want +got):\n%s", c.what, diff)
		}
	}
}

// A chain that is to be another one is replaced, which has the other table written
// before; and where it leads for the time being nothing is taken away.
func TestAdoptionInParts(t *testing.T) {
	n := newNames("vipkit")
	name := func(kind string, number int) string { return n.of(kind, nameOf("a", "b", ""), number) }
	static := op{Key: key{table: nat, chain: "VIPKIT-SERVICES"}}
	external := op{Key: key{table: nat, chain: name(prefixExternal, 0)}, Value: "-j RETURN\n"}
	found := saved{
		{nat, "VIPKIT-SERVICES"}:       nil,
		{nat, external.Key.chain}:      {"-j " + name(prefixFirewall, 0)},
		{nat, name(prefixFirewall, 0)}: {"-j " + name(prefixCluster, 0)},
		{nat, name(prefixCluster, 0)}:  {"-j RETURN"},
		{nat, name(prefixLocal, 0)}:    {"-j RETURN"},
	}
	m := model(maps.Clone(found))
	a := newAdoption(n, found, nil, []op{static, external})
	m.carryOut(t, a, []op{static})
	if _, there := m[chainRef{nat, name(prefixLocal, 0)}]; there {
		t.Error("a chain to which nothing leads is still there")
	}
	want := external
	want.Kind = backends.Replace
	ops := a.plan([]op{external})
	if diff := cmp.Diff([]op{want}, ops, cmp.AllowUnexported(key{})); diff != "" {
		t.Errorf("the operations (-want +got):\n%s", diff)
	}
}
