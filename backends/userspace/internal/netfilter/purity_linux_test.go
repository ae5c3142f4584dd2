package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// newRenderer returns a new renderer for an identity.
func newRenderer(t *testing.T, id backends.Identity, redirect bool) *renderer {
	t.Helper()
	id, err := id.Complete(kinds.Userspace.Defaults())
	testenv.NoError(t, err)
	return &renderer{Config: Config{Identity: id, Families: bothFamilies(), Port: 16421, Redirect: redirect}}
}

// written returns the batch of a commit, as text.
func written(t *testing.T, r *renderer, objects []Object) string {
	t.Helper()
	seen := map[Key]bool{}
	var ops []op
	for _, o := range objects {
		if !seen[o.Key] {
			seen[o.Key] = true
			ops = append(ops, op{Kind: backends.Add, Key: o.Key, Value: o.Value, Payload: o.Payload})
		}
	}
	slices.SortStableFunc(ops, func(a, b op) int { return a.Key.Rank() - b.Key.Rank() })
	w := writer{Capture: &Capture{renderer: *r}}
	if err := w.write(ops, false); err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("%+v", w.batch)
}

// everyRendering returns ports of all actions from inside and outside, with lists of source
// ranges of all sizes, for several nodes.
func everyRendering() (all []stagetest.Rendering) {
	nodes := []*proxy.Node{stagetest.Node(), stagetest.Node(), stagetest.Node(), {}}
	nodes[1].LocalTraffic = proxy.LocalTraffic{Interface: "cni0"}
	nodes[2].LocalTraffic = proxy.LocalTraffic{InterfacePrefix: "veth"}
	nodes[2].NodePorts = proxy.NodePortAddresses{Prefixes: snapshots.Prefixes("192.0.2.0/24", "2001:db8::/64")}
	for _, node := range nodes {
		all = append(all, stagetest.Rendering{Env: backends.Env{Node: node}})
		for _, f := range bothFamilies() {
			for _, inside := range actions() {
				for _, outside := range actions() {
					p := stagetest.Port(f, len(all), 2)
					p.Frontends = append(p.Frontends, stagetest.NodePort(f, uint16(30000+len(all))))
					for i := range p.Frontends {
						p.Frontends[i].FromInside.Action, p.Frontends[i].FromOutside.Action = inside, outside
						p.Frontends[i].Restricted, p.Frontends[i].AllowedSources = len(all)%5 == 0, rangesOf(f, [...]int{0, 2, 64, 65, 130}[len(all)/5%5])
					}
					all = append(all, stagetest.Rendering{Env: backends.Env{Node: node}, Port: p})
				}
			}
		}
	}
	return all
}

func rangesOf(f v1.IPFamily, n int) (all []netip.Prefix) {
	for i := range n {
		a := stagetest.HostIP(f, 2*i)
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// Render has no state: many concurrent calls, for several nodes and in any order, return what
// one call returns, and commits write the same, whichever renderer has rendered the objects.
func TestRenderIsPure(t *testing.T) {
	t.Parallel()
	for _, redirect := range []bool{false, true} {
		stagetest.RunPurity(t, testenv.Random(t), everyRendering(), func() (backends.Render[Key, Value], func([]Object) string) {
			r := newRenderer(t, backends.Identity{}, redirect)
			return r.Render, func(objects []Object) string { return written(t, r, objects) }
		})
	}
}

// A process compares the objects that it finds by key and value alone. So these must determine
// all that the payload writes, for any identity, capture, and node.
func TestKeyAndValueDetermineContent(t *testing.T) {
	t.Parallel()
	type known struct {
		Key   Key
		Value Value
	}
	content := map[known]string{}
	for _, id := range []backends.Identity{{}, {Name: "other", Mark: 0x8000}, {Mark: 0x8000}, {Priority: 5}} {
		for _, redirect := range []bool{false, true} {
			r := newRenderer(t, id, redirect)
			for _, x := range everyRendering() {
				for _, o := range r.Render(x.Env, x.Port, nil) {
					if o.Payload == nil {
						continue
					}
					table := *r
					table.Config = Config{Identity: backends.Identity{Name: "vipkit"}, Redirect: redirect}
					got := written(t, &table, []Object{o})
					if want, ok := content[known{o.Key, o.Value}]; ok && got != want {
						t.Fatalf("%s: two contents of one key and value, with identity %+v, redirect %t, node %+v, port %v", o.Key.name, id, redirect, x.Env, x.Port)
					}
					content[known{o.Key, o.Value}] = got
				}
			}
		}
	}
	if len(content) < 200 {
		t.Errorf("compared sets and chains: got %d, want at least 200", len(content))
	}
}

func bothFamilies() []v1.IPFamily { return []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} }
