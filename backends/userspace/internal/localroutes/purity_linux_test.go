package localroutes

import (
	"slices"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Render has no state: many concurrent calls, for several nodes and in any order, return what
// one call returns. A commit needs keys and values only, and no payloads.
func TestRenderIsPure(t *testing.T) {
	t.Parallel()
	var all []stagetest.Rendering
	for _, node := range []*proxy.Node{stagetest.Node(), {NodePorts: proxy.NodePortAddresses{All: true}}, {}} {
		ports := []*proxy.ServicePort{nil}
		for _, f := range host.Families() {
			for i := range 30 {
				p := stagetest.Port(f, i, 2)
				p.Frontends = append(p.Frontends, stagetest.NodePort(f, uint16(30000+i)))
				for x := range p.Frontends {
					p.Frontends[x].FromInside.Action, p.Frontends[x].FromOutside.Action = proxy.Action(i%4), proxy.Action(i/4%4)
				}
				ports = append(ports, p)
			}
		}
		for _, p := range ports {
			all = append(all, stagetest.Rendering{Node: node, Port: p})
		}
	}
	stagetest.RunPurity(t, testenv.Random(t), all, func() (backends.Render[Key, Value], func([]Object) string) {
		c := &Capture{Config: host.Config{Families: host.Families()}}
		return func(node *proxy.Node, port *proxy.ServicePort, to []Object) []Object {
			to = c.Render(node, port, to)
			if slices.ContainsFunc(to, func(o Object) bool { return o.Payload != nil }) {
				t.Errorf("port %v: got %v, want no payloads", port, to)
			}
			return to
		}, func([]Object) string { return "" }
	})
}
