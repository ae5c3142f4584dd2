package xtables

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// If many rules of a chain are removed at once, the chain is rewritten with the other rules.
// The result is the same as if each had been removed.
func TestManyRemovals(t *testing.T) {
	t.Parallel()
	const all = ManyRemovals + 20
	node := &proxy.Node{NodePorts: proxy.NodePortAddresses{All: true}}
	objects := func(from, to int) (ops []Op) {
		renderer := newNames("vipkit")
		for i := from; i < to; i++ {
			p := &proxy.ServicePort{Name: proxy.ServicePortName{NamespacedName: types.NamespacedName{Namespace: "test", Name: fmt.Sprint(i)}}, Frontends: []proxy.Frontend{{
				Kind: proxy.ClusterIP, Addr: peerAddr(i),
				FromInside: proxy.TrafficRoute{Action: proxy.Reject}, FromOutside: proxy.TrafficRoute{Action: proxy.Reject},
			}}}
			ops = append(ops, stagetest.Additions(renderer.render(node, p, nil))...)
		}
		return ops
	}
	static := stagetest.Additions(newNames("vipkit").render(node, nil, nil))
	for removed, wantRewriting := range map[int]bool{1: false, ManyRemovals / 2: false, ManyRemovals + 1: true, all: true} {
		n, m := newNames("vipkit"), model{}
		commit := func(logical []Op) (written []Op) {
			written = rewrite(logical, manyRemoved(logical), m.seen(n))
			if err := m.restore(string(scriptOf(t, written).text)); err != nil {
				t.Fatalf("%d rules removed: %v", removed, err)
			}
			return written
		}
		commit(slices.Concat(static, objects(0, all)))
		change := objects(all, all+3)
		for _, o := range objects(0, removed) {
			o.Kind = backends.Remove
			change = append(change, o)
		}
		written := commit(change)
		if got := len(written) < len(change); got != wantRewriting {
			t.Errorf("%d rules removed: chains rewritten: got %t, want %t", removed, got, wantRewriting)
		}
		fresh := model{}
		testenv.NoError(t, fresh.restore(string(scriptOf(t, slices.Concat(static, objects(removed, all+3))).text)))
		if diff := cmp.Diff(state(fresh, n), state(m, n)); diff != "" {
			t.Errorf("%d rules removed: rules (-first load +changed):\n%s", removed, diff)
		}
		last := m[chainRef{NAT, "VIPKIT-SERVICES"}]
		if want := "-m addrtype --dst-type LOCAL -m comment --comment \"kubernetes service nodeports\" -j VIPKIT-NODEPORTS"; last[len(last)-1] != want {
			t.Errorf("%d rules removed: last rule: got %q, want %q", removed, last[len(last)-1], want)
		}
	}
}

// A rewritten chain has the added rules, in table filter also added before, and the found
// rules that are not removed. The kernel's own chains, chains that are removed themselves, and
// chains in which a rule to remove is missing are never rewritten.
func TestRewriting(t *testing.T) {
	t.Parallel()
	rule := func(kind backends.OpKind, at Table, chain, text string) Op {
		return Op{Kind: kind, Key: Key{Table: at, Chain: chain, Rule: text}}
	}
	for _, at := range []Table{NAT, Filter} {
		for _, chain := range []string{"VIPKIT-SERVICES", "PREROUTING"} {
			ref := chainRef{at, chain}
			var found []string
			var removals []Op
			for i := range ManyRemovals + 2 {
				found = append(found, fmt.Sprint("r", i))
				removals = append(removals, rule(backends.Remove, at, chain, fmt.Sprint("r", i)))
			}
			found = append(found, "-j OTHERS", "of two\nlines", "")
			back := rule(backends.Add, at, chain, "last")
			back.Key.Back = true
			front := rule(backends.Add, at, chain, "first")
			change := append(slices.Clone(removals[1:]), back, front)
			want := []Op{rewriting(ref, "first\nr0\n-j OTHERS\nlast\n")}
			switch {
			case chain == "PREROUTING":
				want = change
			case at == Filter:
				want = []Op{back, front, want[0]}
			}
			check := func(what string, want, ops []Op, found []string) {
				t.Helper()
				before := slices.Clone(found)
				if diff := cmp.Diff(want, rewrite(ops, manyRemoved(ops), saved{ref: found}), cmp.AllowUnexported(Key{})); diff != "" {
					t.Errorf("%s %s, %s: operations (-want +got):\n%s", at, chain, what, diff)
				}
				if !slices.Equal(found, before) {
					t.Errorf("%s %s, %s: found rules after rewrite: got %q, want %q as before", at, chain, what, found, before)
				}
			}
			check("many rules removed", want, change, found)
			check("a rule is missing", change, change, found[:len(found)-4])
			removed := append(slices.Clone(removals), rule(backends.Remove, at, chain, ""))
			check("the chain is removed", removed, removed, found)
		}
	}
}
