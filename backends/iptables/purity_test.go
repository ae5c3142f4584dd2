package iptables

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Rendered objects do not depend on earlier renderings or their nodes, and are appended to the
// existing ones.
func TestRenderingIsPure(t *testing.T) {
	t.Parallel()
	r, before := rendererOf(t, v1.IPv4Protocol), []xtables.Object{{Key: xtables.Key{Chain: "before"}}}
	nodes := []*proxy.Node{stagetest.Node(), busyNode(), {}}
	ports := []*proxy.ServicePort{nil, stagetest.Port(v1.IPv4Protocol, 1, 2), stagetest.Port(v1.IPv6Protocol, 1, 2), stagetest.Port(v1.IPv4Protocol, 2, 0)}
	bad := &proxy.Node{LocalTraffic: proxy.LocalTraffic{Interface: "two words"}}
	for i := range 40 {
		node, port := nodes[i*i%7%3], ports[i%4]
		if i%9 == 8 {
			node, port = bad, nil
		}
		want := append(before[:1:1], rendererOf(t, v1.IPv4Protocol).render(node, port, nil)...)
		if diff := cmp.Diff(want, r.render(node, port, before[:1:1])); diff != "" {
			t.Fatalf("step %d: objects (-fresh +got):\n%s", i, diff)
		}
	}
}

// someRenderings returns random ports of a family, one of the other family and no port, for
// several nodes.
func someRenderings(r *rand.Rand) (all []stagetest.Rendering) {
	bad := &proxy.Node{LocalTraffic: proxy.LocalTraffic{Interface: "two words"}}
	for i, node := range []*proxy.Node{stagetest.Node(), busyNode(), {}, bad} {
		all = append(all, stagetest.Rendering{Node: node}, stagetest.Rendering{Node: node, Port: stagetest.Port(v1.IPv6Protocol, i, 20)})
		for n := range 8 {
			p := stagetest.RandomPort(r, n)
			p.Affinity = affinity.Config{Timeout: time.Duration(r.IntN(2)) * time.Minute}
			all = append(all, stagetest.Rendering{Node: node, Port: p})
		}
	}
	return all
}

// Concurrent calls, for several nodes and in any order, return the same as each call alone; and
// the scripts of a commit do not depend on the renderer of its objects.
func TestRenderingAtOnce(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		stagetest.RunPurity(t, r, someRenderings(r), func() (backends.Render[xtables.Key, string], func([]xtables.Object) string) {
			return rendererOf(t, family).render, scriptsFor
		})
	}
}

// scriptsFor returns the scripts that add, replace and remove objects, or why there are none.
func scriptsFor(objects []xtables.Object) (all string) {
	for _, kind := range []backends.OpKind{backends.Add, backends.Replace, backends.Remove} {
		ops := stagetest.Additions(objects)
		for i := range ops {
			ops[i].Kind = kind
		}
		s, err := xtables.Script(ops)
		if err != nil {
			return err.Error() // the node cannot be programmed
		}
		all += s
	}
	return all
}
