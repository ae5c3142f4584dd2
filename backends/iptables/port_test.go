package iptables

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// described returns the objects of a service port, a chain or rule in each line: its table;
// "<" for a rule at the front and ">" for one at the back, with "*" if it is shared; and the
// chain, with its kind as its name.
func described(t *testing.T, node *proxy.Node, port *proxy.ServicePort) string {
	t.Helper()
	r := rendererOf(t, v1.IPv4Protocol)
	var short []string
	for _, kind := range []string{prefixCluster, prefixLocal, prefixExternal, prefixFirewall} {
		for number, suffix := range []string{"", "-2", "-3"} {
			short = append(short, r.names.of(kind, port.Name, number), strings.TrimSuffix(kind, "-")+suffix)
		}
	}
	return strings.NewReplacer(append(short, "VIPKIT-", "", "test/service-00001", "it",
		" -m comment --comment", "", " -m tcp --dport", "", "10.128.0.2/32", "VIP",
		"-m statistic --mode random --probability 0.50000000000", "HALF")...).Replace(listed(r.render(backends.Env{Node: node}, port, nil)))
}

func rendererOf(t *testing.T, family v1.IPFamily) *renderer {
	t.Helper()
	o, err := Options{}.complete()
	testenv.NoError(t, err)
	return newRenderer(o, family)
}

// listed returns objects as text, a chain or rule in each line.
func listed(objects []xtables.Object) string {
	var out strings.Builder
	for _, x := range objects {
		mark := map[bool]string{false: "<", true: ">"}[x.Key.Back]
		if x.Key.Rule == "" {
			mark = ":"
		}
		if x.Key.IsShared {
			mark += "*"
		}
		fmt.Fprintf(&out, "%s %s %s", x.Key.Table, mark, x.Key.Chain)
		if x.Key.Rule != "" {
			fmt.Fprintf(&out, " %s", x.Key.Rule)
		}
		for rule := range strings.Lines(x.Value) {
			out.WriteString("\n\t" + strings.TrimSuffix(rule, "\n"))
		}
		out.WriteString("\n")
	}
	return out.String()
}

// frontendAt returns a frontend of some kind with routes for inside and outside.
func frontendAt(kind proxy.FrontendKind, inside, outside proxy.TrafficRoute) proxy.Frontend {
	f := stagetest.NodePort(v1.IPv4Protocol, 30_000)
	if kind != proxy.NodePort {
		f.Addr = stagetest.Port(v1.IPv4Protocol, 1, 0).Frontends[0].Addr
	}
	f.Kind, f.FromInside, f.FromOutside = kind, inside, outside
	return f
}

func restricted(f proxy.Frontend, sources ...string) proxy.Frontend {
	f.Restricted, f.AllowedSources = true, snapshots.Prefixes(sources...)
	return f
}

// The rules for service ports of each kind are those of a golden file.
func TestRenderedPorts(t *testing.T) { //nolint:funlen // a table
	t.Parallel()
	never, always, nonPods := stagetest.Forward(proxy.MasqueradeNever), stagetest.Forward(proxy.MasqueradeAlways), stagetest.Forward(proxy.MasqueradeNonPods)
	local := proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
	reject, drop, pass := proxy.TrafficRoute{Action: proxy.Reject}, proxy.TrafficRoute{Action: proxy.Drop}, proxy.TrafficRoute{}
	localAlways := local
	localAlways.Masquerade = proxy.MasqueradeAlways
	const own, lb = proxy.ClusterIP, proxy.LoadBalancer
	withTraffic := func(by proxy.LocalTraffic) *proxy.Node {
		node := stagetest.Node()
		node.LocalTraffic = by
		return node
	}
	var got strings.Builder
	for _, c := range []struct {
		what      string
		node      *proxy.Node
		frontends []proxy.Frontend
	}{
		{"a ClusterIP", nil, []proxy.Frontend{frontendAt(own, nonPods, always)}},
		{"pods told by an interface", withTraffic(proxy.LocalTraffic{Interface: "cni0"}), []proxy.Frontend{frontendAt(own, nonPods, always)}},
		{"pods told by two ranges", withTraffic(proxy.LocalTraffic{Sources: snapshots.Prefixes("10.1.0.0/16", "10.2.0.0/16")}), []proxy.Frontend{frontendAt(own, nonPods, always)}},
		{"pods not told from others", withTraffic(proxy.LocalTraffic{}), []proxy.Frontend{frontendAt(own, nonPods, always)}},
		{"nobody but pods", withTraffic(proxy.LocalTraffic{Sources: snapshots.Prefixes("0.0.0.0/0")}), []proxy.Frontend{frontendAt(own, nonPods, always)}},
		{"masquerading for all", nil, []proxy.Frontend{frontendAt(own, always, always)}},
		{"masquerading for nobody", nil, []proxy.Frontend{frontendAt(own, never, never)}},
		{"masquerading for insiders", nil, []proxy.Frontend{frontendAt(own, always, never)}},
		{"another pool for insiders", nil, []proxy.Frontend{frontendAt(own, local, always)}},
		{"local endpoints", nil, []proxy.Frontend{frontendAt(own, local, local)}},
		{"local endpoints for all, masquerading for outsiders", nil, []proxy.Frontend{frontendAt(lb, local, localAlways)}},
		{"left alone", nil, []proxy.Frontend{frontendAt(lb, pass, pass)}},
		{"left alone inside, dropped outside", nil, []proxy.Frontend{frontendAt(lb, pass, drop)}},
		{"left alone inside, source ranges", nil, []proxy.Frontend{restricted(frontendAt(lb, pass, always), "192.0.2.0/24")}},
		{"no endpoints", nil, []proxy.Frontend{frontendAt(own, reject, reject)}},
		{"no endpoints for insiders", nil, []proxy.Frontend{frontendAt(own, reject, never)}},
		{"a load balancer", nil, []proxy.Frontend{frontendAt(lb, nonPods, always)}},
		{"local endpoints for outsiders", nil, []proxy.Frontend{frontendAt(lb, nonPods, local)}},
		{"no local endpoints", nil, []proxy.Frontend{frontendAt(lb, always, drop)}},
		{"refused inside, dropped outside", nil, []proxy.Frontend{frontendAt(lb, reject, drop)}},
		{"a load balancer without endpoints", nil, []proxy.Frontend{frontendAt(lb, reject, reject)}},
		{"source ranges", nil, []proxy.Frontend{restricted(frontendAt(lb, always, always), "192.0.2.0/24", "0.0.0.0/0")}},
		{"closed", nil, []proxy.Frontend{restricted(frontendAt(lb, always, always))}},
		{"source ranges, no endpoints", nil, []proxy.Frontend{restricted(frontendAt(lb, reject, reject), "192.0.2.0/24")}},
		{"source ranges, no local endpoints", nil, []proxy.Frontend{restricted(frontendAt(lb, always, drop), "192.0.2.0/24")}},
		{"source ranges, refused outside", nil, []proxy.Frontend{restricted(frontendAt(lb, never, reject), "192.0.2.0/24")}},
		{"two with the same ranges, and a third", nil, []proxy.Frontend{
			restricted(frontendAt(lb, never, never), "192.0.2.0/24"), restricted(frontendAt(proxy.ExternalIP, never, never), "192.0.2.0/24"),
			restricted(frontendAt(lb, never, never), "198.51.100.0/24"),
		}},
		{"a node port", nil, []proxy.Frontend{frontendAt(proxy.NodePort, always, always)}},
		{"a node port without local endpoints", nil, []proxy.Frontend{frontendAt(proxy.NodePort, always, drop)}},
		{"a health check", nil, []proxy.Frontend{frontendAt(lb, nonPods, local)}},
		{stickyFor, nil, []proxy.Frontend{frontendAt(own, never, never)}},
	} {
		port := stagetest.Port(v1.IPv4Protocol, 1, 2)
		port.Local = port.Cluster[:1]
		port.Frontends = c.frontends
		if c.what == "a health check" {
			port.HealthCheckNodePort = 32_000
		}
		if c.what == stickyFor {
			port.Affinity = affinity.Config{Timeout: 1500 * time.Millisecond}
		}
		if c.node == nil {
			c.node = stagetest.Node()
		}
		fmt.Fprintf(&got, "== %s\n%s\n", c.what, described(t, c.node, port))
	}
	want, err := os.ReadFile("testdata/ports.txt")
	testenv.NoError(t, err)
	testenv.Same(t, string(want), got.String(), "rendered ports")
}

// stickyFor is the case with affinity, whose timeout is rounded to whole seconds.
const stickyFor = "affinity for a second and a half"

// busyNode returns a node with many settings.
func busyNode() *proxy.Node {
	node := stagetest.Node()
	node.LocalTraffic = proxy.LocalTraffic{Sources: snapshots.Prefixes("10.1.0.0/16", "fd00:10::/32"), Interface: "cni0"}
	node.NodePorts = proxy.NodePortAddresses{Prefixes: snapshots.Prefixes("172.18.0.0/16", "fd00:18::/64")}
	return node
}

// The objects that do not depend on service ports are those of a golden file, in both
// families, also for a node with several criteria for pods, addresses for node ports and
// service ranges.
func TestRenderedNodeAsAWhole(t *testing.T) {
	t.Parallel()
	plain, much := stagetest.Node(), busyNode()
	much.LocalTraffic.InterfacePrefix = strings.Repeat("x", 15) // the longest name
	much.NodePorts.Prefixes = append(much.NodePorts.Prefixes, snapshots.Prefixes("172.19.0.0/16", "fd00:19::/64")...)
	much.ServiceCIDRs = snapshots.Prefixes("10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112", "fd00:97::/112")
	var got strings.Builder
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		r := rendererOf(t, family)
		port := stagetest.Port(family, 1, 1)
		fmt.Fprintf(&got, "== %s\n%s\n== a port\n%s\n", family, listed(r.render(backends.Env{Node: plain}, nil, nil)), listed(r.render(backends.Env{Node: plain}, port, nil)))
		fmt.Fprintf(&got, "== %s, a node with much to say\n%s\n", family, listed(r.render(backends.Env{Node: much}, nil, nil)))
	}
	want, err := os.ReadFile("testdata/nodes.txt")
	testenv.NoError(t, err)
	testenv.Same(t, string(want), got.String(), "rendered nodes")
}

// someRenderings returns random ports of a family, one of the other family and no port, for
// several nodes.
func someRenderings(r *rand.Rand) (all []stagetest.Rendering) {
	bad := &proxy.Node{LocalTraffic: proxy.LocalTraffic{Interface: "two words"}}
	for i, node := range []*proxy.Node{stagetest.Node(), busyNode(), {}, bad} {
		all = append(all, stagetest.Rendering{Env: backends.Env{Node: node}}, stagetest.Rendering{Env: backends.Env{Node: node}, Port: stagetest.Port(v1.IPv6Protocol, i, 20)})
		for n := range 8 {
			p := stagetest.RandomPort(r, n)
			p.Affinity = affinity.Config{Timeout: time.Duration(r.IntN(2)) * time.Minute}
			all = append(all, stagetest.Rendering{Env: backends.Env{Node: node}, Port: p})
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

// scriptsFor returns the scripts that add, replace and remove objects.
func scriptsFor(objects []xtables.Object) (all string) {
	for _, kind := range []backends.OpKind{backends.Add, backends.Replace, backends.Remove} {
		ops := stagetest.Additions(objects)
		for i := range ops {
			ops[i].Kind = kind
		}
		all += xtables.Script(ops)
	}
	return all
}
