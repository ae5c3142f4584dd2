package xtables

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testenv"
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
	for ref, rules := range m.seen(n) {
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

// adopt commits the parts of a first load one after the other.
func adopt(t *testing.T, m model, n Names, parts ...[]Op) {
	t.Helper()
	a := newAdoption(n, m.seen(n), nil, slices.Concat(parts...))
	for _, part := range parts {
		ops := a.plan(part)
		s := scriptOf(t, ops)
		if err := m.restore(string(s.text)); err != nil {
			t.Fatalf("%v\n%s", err, s.text)
		}
		a.record(part, ops)
	}
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

// From any existing rules, adoption makes the wanted ones and keeps foreign ones. A second
// adoption then does nothing.
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
		if err := m.restore(string(scriptOf(t, slices.Concat(randomLoad(t, r)...)).text)); err != nil {
			t.Fatalf("step %d: a first load: %v", step, err)
		}
		if r.IntN(2) == 0 {
			damage(r, m)
			m[chainRef{NAT, "PREROUTING"}] = append([]string{"-j CNI-HOSTPORT"}, slices.DeleteFunc(
				m[chainRef{NAT, "PREROUTING"}], func(s string) bool { return s == "-j CNI-HOSTPORT" })...)
		}
		ports := randomLoad(t, r)
		want := slices.Concat(ports...)
		fresh := model{}
		if err := fresh.restore(string(scriptOf(t, want).text)); err != nil {
			t.Fatalf("step %d: a first load of the wanted rules: %v", step, err)
		}
		if r.IntN(2) == 0 { // in parts, as after a refusal
			adopt(t, m, n, slices.Concat(ports[:len(ports)/2]...), slices.Concat(ports[len(ports)/2:]...))
		}
		adopt(t, m, n, want)
		if diff := cmp.Diff(state(fresh, n), state(m, n)); diff != "" {
			t.Fatalf("step %d: rules (-first load +adopted):\n%s", step, diff)
		}
		if ops := newAdoption(n, m.seen(n), nil, want).plan(want); len(ops) > 0 {
			t.Fatalf("step %d: operations of a second adoption: got %v, want none", step, ops)
		}
		checkForeign(t, m, foreign)
		ops := m.seen(n).removal(n, nil)
		if err := m.restore(string(scriptOf(t, ops).text)); err != nil {
			t.Fatalf("step %d: cleanup: %v", step, err)
		}
		if left := m.seen(n); len(left) > 0 {
			t.Fatalf("step %d: rules after cleanup: got %v, want none", step, left)
		}
	}
}

// peerAddr returns an address for frontend i.
func peerAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), 80)
}
