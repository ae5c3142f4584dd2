package xtables

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// randomLoad returns the operations of a first load of a random snapshot: those of the node,
// and those of each service port.
func randomLoad(t *testing.T, r *rand.Rand) [][]Op {
	t.Helper()
	renderer := newNames("vipkit")
	node := &proxy.Node{
		NodePorts:    proxy.NodePortAddresses{All: r.IntN(2) == 0, Prefixes: stagetest.Prefixes("172.18.0.2/32")},
		LocalTraffic: proxy.LocalTraffic{Sources: stagetest.Prefixes("10.0.0.0/9", "10.128.0.0/9")[:r.IntN(3)]},
	}
	all := [][]Op{stagetest.Additions(renderer.render(node, nil, nil))}
	for i := range 5 {
		if r.IntN(3) > 0 {
			all = append(all, stagetest.Additions(renderer.render(node, stagetest.RandomPort(r, i), nil)))
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

// state returns the rules of the identity's chains. It sorts those of open chains, whose
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

func scriptOf(t *testing.T, ops []Op) *script {
	t.Helper()
	s, err := newScript(ops, 0)
	testenv.NoError(t, err)
	return s
}

func objectsOf(ops []Op) map[Key]string {
	all := map[Key]string{}
	for _, o := range ops {
		all[o.Key] = o.Value
	}
	return all
}

// write carries out operations.
func (m model) write(t *testing.T, ops []Op) {
	t.Helper()
	text := string(scriptOf(t, ops).text)
	if err := m.restore(text); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// adopt makes what exists what operations add. With keep, other own rules stay.
func (m model) adopt(t *testing.T, n Names, ops []Op, keep bool) *plan {
	t.Helper()
	p := m.seen(n).adopt(n, objectsOf(ops), keep)
	removals, _ := p.removals()
	m.write(t, slices.Concat(p.ops, removals))
	return p
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

// withoutOne removes the operations of one service port, if there is one.
func withoutOne(r *rand.Rand, load [][]Op) [][]Op {
	if len(load) < 2 {
		return load
	}
	at := 1 + r.IntN(len(load)-1)
	return slices.Delete(slices.Clone(load), at, at+1)
}

// While service ports are committed in parts, a chain whose rules are not known keeps them until its part; with
// the last part it is emptied.
func TestUnknownRulesStay(t *testing.T) {
	t.Parallel()
	n := newNames("vipkit")
	ref := chainRef{NAT, "VIPKIT-SVC-AAAAAAAAAAAAAAAA"}
	e := &existing{chains: saved{ref: {"-j a"}}, jumps: saved{}, knowledge: knowledge{
		isForeign: func(Table, string) bool { return false }, misread: map[chainRef]bool{ref: true},
	}}
	for keep, want := range map[bool]int{true: 0, false: 1} {
		if p := e.adopt(n, nil, keep); len(p.ops) != want {
			t.Errorf("keep %t: got operations %v, want %d", keep, p.ops, want)
		}
	}
}

// From any existing rules, adoption makes the wanted ones and keeps foreign ones, in one commit or in
// parts. A second adoption then does nothing.
func TestAdoption(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	n := newNames("vipkit")
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
		ports := randomLoad(t, r)
		if r.IntN(2) == 0 { // in parts, as after a refusal of one
			ports = withoutOne(r, ports)
			for i := range ports {
				m.adopt(t, n, slices.Concat(ports[:i+1]...), true)
			}
		}
		want := slices.Concat(ports...)
		m.adopt(t, n, want, false)
		fresh := model{}
		fresh.write(t, want)
		if diff := cmp.Diff(state(fresh, n), state(m, n)); diff != "" {
			t.Fatalf("step %d: rules (-first load +adopted):\n%s", step, diff)
		}
		if p := m.adopt(t, n, want, false); len(p.ops)+len(p.unwanted) > 0 {
			t.Fatalf("step %d: operations of a second adoption: got %v, want none", step, p.ops)
		}
		checkForeign(t, m, foreign)
		m.adopt(t, n, nil, false)
		if left := state(m, n); len(left) > 0 {
			t.Fatalf("step %d: rules after cleanup: got %v, want none", step, left)
		}
	}
}

// A chain is written if its text differs: the order within the front and the back of an open chain
// means nothing. Rules of table filter that are not wanted stay until the other tables are written.
func TestAdoptionPlans(t *testing.T) {
	t.Parallel()
	n := newNames("vipkit")
	wanted := objectsOf(written(t, "+ filter VIPKIT-SERVICES", "+ filter VIPKIT-SERVICES < a", "+ filter VIPKIT-SERVICES < b", "+ filter VIPKIT-SERVICES > y", "+ filter VIPKIT-SERVICES > z"))
	write := func(back bool, rules ...string) Op {
		return Op{Kind: backends.Replace, Key: Key{Table: Filter, Chain: "VIPKIT-SERVICES", Back: back}, Value: Lines(rules)}
	}
	whole := write(false, "a", "b", "y", "z")
	for _, c := range []struct {
		what    string
		found   []string
		misread bool
		want    []Op
	}{
		{"as wanted", []string{"a", "b", "y", "z"}, false, nil},
		{"in another order", []string{"b", "a", "z", "y"}, false, nil},
		{"in the wrong halves", []string{"a", "y", "b", "z"}, false, []Op{whole}},
		{"misread", []string{"a", "b", "y", "z"}, true, []Op{whole}},
		{"misread, and one more", []string{"a", "b", "c", "y", "z"}, true, []Op{whole}},
		{"one missing", []string{"a", "b", "z"}, false, []Op{whole}},
		{"twice", []string{"a", "a", "b", "y", "z"}, false, []Op{whole}},
		{"one more", []string{"a", "b", "c", "y", "z"}, false, []Op{write(true, "a", "b", "y", "z")}},
		{"another one", []string{"a", "c", "y", "z"}, false, []Op{write(false, "a", "b", "c", "y", "z"), write(true, "a", "b", "y", "z")}},
		{"a foreign one", []string{"a", "b", "foreign", "y", "z"}, false, []Op{whole}},
	} {
		e := model{{Filter, "VIPKIT-SERVICES"}: c.found}.seen(n)
		e.isForeign = func(_ Table, rule string) bool { return rule == "foreign" }
		e.misread = map[chainRef]bool{{Filter, "VIPKIT-SERVICES"}: c.misread}
		if diff := cmp.Diff(c.want, e.adopt(n, wanted, false).ops, cmp.AllowUnexported(Key{})); diff != "" {
			t.Errorf("%s: operations (-want +got):\n%s", c.what, diff)
		}
	}
}

// A chain or rule that another part replaces serves until all parts are committed.
func TestAdoptionInParts(t *testing.T) {
	t.Parallel()
	n := newNames("vipkit")
	name := func(kind string) string { return n.of(kind, "a/b", 0) }
	const to = "-d 192.0.2.1/32 -p tcp -m tcp --dport 80 -j "
	services, old := chainRef{NAT, "VIPKIT-SERVICES"}, to+name(prefixFirewall)
	m := model{
		services:                    {old, "-j RETURN"},
		{NAT, name(prefixExternal)}: {"-j " + name(prefixFirewall)},
		{NAT, name(prefixFirewall)}: {"-j RETURN"},
	}
	static := written(t, "+ nat VIPKIT-SERVICES", "+ nat VIPKIT-SERVICES < -d 192.0.2.2/32 -j RETURN", "+ nat VIPKIT-SERVICES > -j RETURN")
	all := append(static, written(t, "+ nat "+name(prefixExternal)+" : -j RETURN", "+ nat VIPKIT-SERVICES < "+to+name(prefixExternal))...)
	for _, c := range []struct {
		ops  []Op
		keep bool
		want model
	}{
		{static, true, model{
			services:                    {"-d 192.0.2.2/32 -j RETURN", old, "-j RETURN"},
			{NAT, name(prefixExternal)}: {"-j " + name(prefixFirewall)}, {NAT, name(prefixFirewall)}: {"-j RETURN"},
		}},
		{all, true, model{
			services:                    {to + name(prefixExternal), "-d 192.0.2.2/32 -j RETURN", old, "-j RETURN"},
			{NAT, name(prefixExternal)}: {"-j RETURN"}, {NAT, name(prefixFirewall)}: {"-j RETURN"},
		}},
		{all, false, model{
			services:                    {to + name(prefixExternal), "-d 192.0.2.2/32 -j RETURN", "-j RETURN"},
			{NAT, name(prefixExternal)}: {"-j RETURN"},
		}},
	} {
		m.adopt(t, n, c.ops, c.keep)
		if diff := cmp.Diff(c.want, m, cmp.AllowUnexported(chainRef{})); diff != "" {
			t.Errorf("%d objects, keep %t: rules (-want +got):\n%s", len(c.ops), c.keep, diff)
		}
	}
}
