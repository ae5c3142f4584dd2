package iptables

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Many rules that go at once take their chain with them, which is written with
// those that stay, so that the rules end as if each had been removed.
func TestManyRemovals(t *testing.T) {
	o, err := Options{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	node := &proxy.Node{NodePorts: proxy.NodePortAddresses{All: true}}
	objects := func(from, to int) (all []op) {
		renderer := newRenderer(o, v1.IPv4Protocol)
		for i := from; i < to; i++ {
			p := &proxy.ServicePort{Name: nameOf("test", fmt.Sprint(i), ""), Frontends: []proxy.Frontend{{
				Kind: proxy.ClusterIP, Addr: peerAddr(i),
				FromInside: proxy.TrafficRoute{Action: proxy.Reject}, FromOutside: proxy.TrafficRoute{Action: proxy.Reject},
			}}}
			all = append(all, additions(renderer.render(node, p, nil))...)
		}
		return all
	}
	static := additions(newRenderer(o, v1.IPv4Protocol).render(node, nil, nil))
	for gone, wantRewriting := range map[int]bool{1: false, manyRemovals / 2: false, manyRemovals + 1: true, 40: true} {
		n, m, r := newNames("vipkit"), model{}, roster{}
		carryOut := func(logical []op) (written []op) {
			written = r.compact(logical)
			if err := m.restore(string(scriptOf(t, written).text)); err != nil {
				t.Fatalf("%d rules go: %v", gone, err)
			}
			r.note(logical)
			return written
		}
		carryOut(slices.Concat(static, objects(0, 40)))
		change := objects(40, 43)
		for _, o := range objects(0, gone) {
			o.Kind = backends.Remove
			change = append(change, o)
		}
		written := carryOut(change)
		if got := len(written) < len(change); got != wantRewriting {
			t.Errorf("%d rules go: chains are written anew: got %t, want %t", gone, got, wantRewriting)
		}
		fresh := model{}
		if err := fresh.restore(string(scriptOf(t, slices.Concat(static, objects(gone, 43))).text)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(state(fresh, n), state(m, n)); diff != "" {
			t.Errorf("%d rules go: the rules (-fresh +changed):\n%s", gone, diff)
		}
		last := m[chainRef{nat, "VIPKIT-SERVICES"}]
		if want := "-m addrtype --dst-type LOCAL -m comment --comment \"kubernetes service nodeports\" -j VIPKIT-NODEPORTS"; last[len(last)-1] != want {
			t.Errorf("%d rules go: the last rule is %q, want %q", gone, last[len(last)-1], want)
		}
	}
}

// What is written in the place of many removals has what is added, in table filter
// also before it; chains of the kernel's own, and those that go themselves, are never
// written anew; and what is only planned is not noted.
func TestCompact(t *testing.T) {
	rule := func(kind backends.OpKind, at table, chain, text string) op {
		return op{Kind: kind, Key: key{table: at, chain: chain, rule: text}}
	}
	for _, at := range []table{nat, filter} {
		for _, chain := range []string{"VIPKIT-SERVICES", "PREROUTING"} {
			var adds, removals []op
			for i := range manyRemovals + 2 {
				adds = append(adds, rule(backends.Add, at, chain, fmt.Sprint("r", i)))
				removals = append(removals, rule(backends.Remove, at, chain, fmt.Sprint("r", i)))
			}
			r := roster{}
			r.note(adds)
			change := append(slices.Clone(removals[1:]), rule(backends.Add, at, chain, "new"))
			want := []op{rewriting(chainRef{at, chain}, "new\nr0\n")}
			switch {
			case chain == "PREROUTING":
				want = change
			case at == filter:
				want = append(change[len(change)-1:], want...)
			}
			if diff := cmp.Diff(want, r.compact(change), cmp.AllowUnexported(key{})); diff != "" {
				t.Errorf("%s %s: the operations (-want +got):\n%s", at, chain, diff)
			}
			if n := len(r[chainRef{at, chain}]); n != len(adds) {
				t.Errorf("%s %s: a plan changed what is noted: %d rules, want %d", at, chain, n, len(adds))
			}
			change = append(slices.Clone(removals), rule(backends.Remove, at, chain, ""))
			if diff := cmp.Diff(change, r.compact(change), cmp.AllowUnexported(key{})); diff != "" {
				t.Errorf("%s %s goes: the operations (-want +got):\n%s", at, chain, diff)
			}
		}
	}
}
