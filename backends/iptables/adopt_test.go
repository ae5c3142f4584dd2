package iptables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// randomPort makes one of a few service ports, of any kind.
func randomPort(r *rand.Rand, i int) *proxy.ServicePort {
	p := &proxy.ServicePort{Name: nameOf("test", fmt.Sprintf("service-%d", i), "")}
	for e := range r.IntN(4) {
		p.Cluster = append(p.Cluster, &endpoints.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), byte(e + r.IntN(2))}), 8080)})
	}
	p.Local = p.Cluster[:len(p.Cluster)/2]
	p.HasEndpoints = len(p.Cluster) > 0
	route := func(pool proxy.Pool) proxy.TrafficRoute {
		if len(p.Pool(pool)) == 0 {
			return proxy.TrafficRoute{Action: []proxy.Action{proxy.Reject, proxy.Drop}[r.IntN(2)]}
		}
		return proxy.TrafficRoute{Action: proxy.Forward, Pool: pool, Masquerade: proxy.Masquerade(r.IntN(3))}
	}
	for kind := proxy.ClusterIP; kind <= proxy.NodePort; kind++ {
		if kind != proxy.ClusterIP && r.IntN(2) == 0 {
			continue
		}
		f := proxy.Frontend{
			Kind: kind, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(kind), byte(i)}), 80),
			FromInside: route(proxy.Pool(r.IntN(2))), FromOutside: route(proxy.Pool(r.IntN(2))),
		}
		if kind == proxy.NodePort {
			f.Addr = netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(30_000+i))
		}
		if kind == proxy.LoadBalancer && r.IntN(2) == 0 {
			f.Restricted, f.AllowedSources = true, stagetest.Prefixes("198.51.100.0/24", "203.0.113.0/24")[:r.IntN(3)]
		}
		p.Frontends = append(p.Frontends, f)
	}
	return p
}

// randomWorld gives what is wanted, as the operations of a first load: those of the
// node, and those of each service port.
func randomWorld(t *testing.T, r *rand.Rand) [][]op {
	t.Helper()
	o, err := Options{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	renderer := newRenderer(o, v1.IPv4Protocol)
	node := &proxy.Node{
		NodePorts:    proxy.NodePortAddresses{All: r.IntN(2) == 0, Prefixes: stagetest.Prefixes("172.18.0.2/32")},
		LocalTraffic: proxy.LocalTraffic{Sources: stagetest.Prefixes("10.0.0.0/9", "10.128.0.0/9")[:r.IntN(3)]},
	}
	all := [][]op{additions(renderer.render(node, nil, nil))}
	for i := range 5 {
		if r.IntN(3) > 0 {
			all = append(all, additions(renderer.render(node, randomPort(r, i), nil)))
		}
	}
	return all
}

// damage changes what is there as others might.
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

// state is what a chain says, with rules of open chains in order where that means
// nothing.
func state(m model, n names) map[string][]string {
	out := map[string][]string{}
	for ref, rules := range m.seen(n) {
		if n.isOpen(ref.name) {
			slices.Sort(rules)
		}
		out[ref.table.String()+" "+ref.name] = append([]string{}, rules...)
	}
	return out
}

func scriptOf(t *testing.T, ops []op) *script {
	t.Helper()
	s, err := newScript(ops)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// adopt carries out parts of a first load after the other.
func adopt(t *testing.T, m model, n names, parts ...[]op) {
	t.Helper()
	a := newAdoption(n, m.seen(n), nil, slices.Concat(parts...))
	for _, part := range parts {
		ops := a.plan(part)
		s := scriptOf(t, ops)
		if err := m.restore(string(s.text)); err != nil {
			t.Fatalf("%v\n%s", err, s.text)
		}
		a.settle(part, ops)
	}
}

func checkForeign(t *testing.T, m model, foreign map[chainRef][]string) {
	t.Helper()
	for ref, rules := range foreign {
		if ref.name != "PREROUTING" && !slices.Equal(m[ref], rules) {
			t.Fatalf("chain %s of others: got %q, want %q", ref.name, m[ref], rules)
		}
	}
	if !slices.Contains(m[chainRef{nat, "PREROUTING"}], "-j CNI-HOSTPORT") {
		t.Fatal("the jump of others is gone")
	}
}

// From whatever is there, adoption leads to what is wanted, keeps what is not of
// this identity, and then finds nothing to do.
func TestAdoption(t *testing.T) {
	r := testenv.Random(t)
	n := newNames("vipkit")
	foreign := map[chainRef][]string{
		{nat, "PREROUTING"}: {"-j CNI-HOSTPORT"}, {nat, "CNI-HOSTPORT"}: {"-j RETURN"}, {filter, "KUBE-SERVICES"}: {"-j DROP"},
	}
	for step := range 300 {
		m := model{}
		maps.Copy(m, foreign)
		if err := m.restore(string(scriptOf(t, slices.Concat(randomWorld(t, r)...)).text)); err != nil {
			t.Fatalf("step %d: a first load: %v", step, err)
		}
		if r.IntN(2) == 0 {
			damage(r, m)
			m[chainRef{nat, "PREROUTING"}] = append([]string{"-j CNI-HOSTPORT"}, slices.DeleteFunc(
				m[chainRef{nat, "PREROUTING"}], func(s string) bool { return s == "-j CNI-HOSTPORT" })...)
		}
		ports := randomWorld(t, r)
		want := slices.Concat(ports...)
		fresh := model{}
		if err := fresh.restore(string(scriptOf(t, want).text)); err != nil {
			t.Fatalf("step %d: a fresh load: %v", step, err)
		}
		if r.IntN(2) == 0 { // after a refusal; the next full look does the rest
			adopt(t, m, n, slices.Concat(ports[:len(ports)/2]...), slices.Concat(ports[len(ports)/2:]...))
		}
		adopt(t, m, n, want)
		if diff := cmp.Diff(state(fresh, n), state(m, n)); diff != "" {
			t.Fatalf("step %d: the rules (-fresh +adopted):\n%s", step, diff)
		}
		if ops := newAdoption(n, m.seen(n), nil, want).plan(want); len(ops) > 0 {
			t.Fatalf("step %d: a second adoption finds something to do: %v", step, ops)
		}
		checkForeign(t, m, foreign)
		ops := m.seen(n).removal(n, nil)
		if err := m.restore(string(scriptOf(t, ops).text)); err != nil {
			t.Fatalf("step %d: cleanup: %v", step, err)
		}
		if left := m.seen(n); len(left) > 0 {
			t.Fatalf("step %d: after cleanup there is %v", step, left)
		}
	}
}

// peerAddr is an address for frontend i.
func peerAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), 80)
}
