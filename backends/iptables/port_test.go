package iptables

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// pictured is what a service port needs, a chain or a rule a line: its table; "<" where
// the rule stands in front, and ">" behind others, with "*" if others may need it too;
// and the chain, with the kind of it in the place of its name.
func pictured(t *testing.T, node *proxy.Node, port *proxy.ServicePort) string {
	t.Helper()
	r := rendererOf(t, v1.IPv4Protocol)
	var short []string
	for _, kind := range []string{prefixCluster, prefixLocal, prefixExternal, prefixFirewall} {
		for number, suffix := range []string{"", "-2", "-3"} {
			short = append(short, r.names.of(kind, port.Name, number), strings.TrimSuffix(kind, "-")+suffix)
		}
	}
	return strings.NewReplacer(append(short, "VIPKIT-", "", "test/service-00001", "it",
		" -m comment --comment", "", " -m tcp --dport", "", " --reject-with icmp-port-unreachable", "", "10.128.0.2/32", "VIP",
		"-m statistic --mode random --probability 0.50000000000", "HALF")...).Replace(listed(r.render(node, port, nil)))
}

func rendererOf(t *testing.T, family v1.IPFamily) *renderer {
	t.Helper()
	o, err := Options{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	return newRenderer(o, family)
}

// listed gives objects, a chain or a rule a line.
func listed(objects []object) string {
	var out strings.Builder
	for _, x := range objects {
		place := map[bool]string{false: "<", true: ">"}[x.Key.back]
		if x.Key.rule == "" {
			place = ":"
		}
		if x.Key.shared {
			place += "*"
		}
		fmt.Fprintf(&out, "%s %s %s", x.Key.table, place, x.Key.chain)
		if x.Key.rule != "" {
			fmt.Fprintf(&out, " %s", x.Key.rule)
		}
		for rule := range strings.Lines(x.Value) {
			out.WriteString("\n\t" + strings.TrimSuffix(rule, "\n"))
		}
		out.WriteString("\n")
	}
	return out.String()
}

// frontendAt is a frontend of some kind with routes for inside and outside.
func frontendAt(kind proxy.FrontendKind, inside, outside proxy.TrafficRoute) proxy.Frontend {
	f := stagetest.NodePort(v1.IPv4Protocol, 30_000)
	if kind != proxy.NodePort {
		f.Addr = stagetest.Port(v1.IPv4Protocol, 1, 0).Frontends[0].Addr
	}
	f.Kind, f.FromInside, f.FromOutside = kind, inside, outside
	return f
}

func restricted(f proxy.Frontend, sources ...string) proxy.Frontend {
	f.Restricted, f.AllowedSources = true, stagetest.Prefixes(sources...)
	return f
}

// What service ports of each kind become, rule by rule.
func TestRenderedPorts(t *testing.T) {
	never, always, nonPods := stagetest.Forward(proxy.MasqueradeNever), stagetest.Forward(proxy.MasqueradeAlways), stagetest.Forward(proxy.MasqueradeNonPods)
	local := proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
	reject, drop, pass := proxy.TrafficRoute{Action: proxy.Reject}, proxy.TrafficRoute{Action: proxy.Drop}, proxy.TrafficRoute{}
	localAlways := local
	localAlways.Masquerade = proxy.MasqueradeAlways
	const own, lb = proxy.ClusterIP, proxy.LoadBalancer
	told := func(by proxy.LocalTraffic) *proxy.Node {
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
		{"pods told by an interface", told(proxy.LocalTraffic{Interface: "cni0"}), []proxy.Frontend{frontendAt(own, nonPods, always)}},
		{"pods told by two ranges", told(proxy.LocalTraffic{Sources: stagetest.Prefixes("10.1.0.0/16", "10.2.0.0/16")}), []proxy.Frontend{frontendAt(own, nonPods, always)}},
		{"pods not told from others", told(proxy.LocalTraffic{}), []proxy.Frontend{frontendAt(own, nonPods, always)}},
		{"nobody but pods", told(proxy.LocalTraffic{Sources: stagetest.Prefixes("0.0.0.0/0")}), []proxy.Frontend{frontendAt(own, nonPods, always)}},
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
		{stickyFor, nil, []proxy.Frontend{frontendAt(own, never, never)}},
	} {
		port := stagetest.Port(v1.IPv4Protocol, 1, 2)
		port.Local = port.Cluster[:1]
		port.Frontends = c.frontends
		if c.what == stickyFor {
			port.Affinity = affinity.Config{Timeout: 1500 * time.Millisecond}
		}
		if c.node == nil {
			c.node = stagetest.Node()
		}
		fmt.Fprintf(&got, "== %s\n%s\n", c.what, pictured(t, c.node, port))
	}
	want, err := os.ReadFile("testdata/ports.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("what is rendered (-want +got):\n%s", diff)
	}
}

// stickyFor is a port with affinity, of which the kernel counts whole seconds.
const stickyFor = "affinity for a second and a half"

// What is there whatever the service ports are, of a node with much to say.
func TestRenderedNode(t *testing.T) {
	o, err := Options{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	node := busyNode()
	r := newRenderer(o, v1.IPv4Protocol)
	page := r.page(node)
	for what, c := range map[string]struct{ got, want []string }{
		"new connections that were not translated": {page.firewall(), []string{
			"-m conntrack --ctstate DNAT -j RETURN", "-j VIPKIT-EXTERNAL-SERVICES",
			"-d 172.18.0.0/16 -m addrtype --dst-type LOCAL -j VIPKIT-NODEPORTS", "-j VIPKIT-SERVICES", "-d 10.128.0.0/9 -j DROP",
		}},
		"all but pods":  {page.markNonPods(), []string{"-s 10.1.0.0/16 -j RETURN", "-i cni0 -j RETURN", "-j MARK --set-xmark 0x4000/0x4000"}},
		"no connection": {page.invalid(), []string{"-s 10.1.0.0/16 -j DROP", "-i cni0 -j DROP", "-d 10.128.0.0/9 -j DROP"}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s: the rules (-want +got):\n%s", what, diff)
		}
	}
	if r.liberal = true; len(page.invalid()) > 0 {
		t.Errorf("where the kernel is liberal: got rules %q, want none", page.invalid())
	}
}

// busyNode is a node with much to say.
func busyNode() *proxy.Node {
	node := stagetest.Node()
	node.LocalTraffic = proxy.LocalTraffic{Sources: stagetest.Prefixes("10.1.0.0/16", "fd00:10::/32"), Interface: "cni0"}
	node.NodePorts = proxy.NodePortAddresses{Prefixes: stagetest.Prefixes("172.18.0.0/16", "fd00:18::/64")}
	return node
}

// What is always there in both families; where more tells pods, there are more addresses
// for node ports, and several service ranges.
func TestRenderedNodeAsAWhole(t *testing.T) {
	plain, much := stagetest.Node(), busyNode()
	much.LocalTraffic.InterfacePrefix = strings.Repeat("x", longestInterface)
	much.NodePorts.Prefixes = append(much.NodePorts.Prefixes, stagetest.Prefixes("172.19.0.0/16", "fd00:19::/64")...)
	much.ServiceCIDRs = stagetest.Prefixes("10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112", "fd00:97::/112")
	var got strings.Builder
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		r := rendererOf(t, family)
		port := stagetest.Port(family, 1, 1)
		fmt.Fprintf(&got, "== %s\n%s\n== a port\n%s\n", family, listed(r.render(plain, nil, nil)), listed(r.render(plain, port, nil)))
		fmt.Fprintf(&got, "== %s, a node with much to say\n%s\n", family, listed(r.render(much, nil, nil)))
	}
	want, err := os.ReadFile("testdata/nodes.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("what is rendered (-want +got):\n%s", diff)
	}
}

// Whatever was rendered before, and for which node, objects are the same, and come behind
// those that are there.
func TestRenderingIsPure(t *testing.T) {
	r, before := rendererOf(t, v1.IPv4Protocol), []object{{Key: key{chain: "before"}}}
	nodes := []*proxy.Node{stagetest.Node(), busyNode(), {}}
	ports := []*proxy.ServicePort{nil, stagetest.Port(v1.IPv4Protocol, 1, 2), stagetest.Port(v1.IPv6Protocol, 1, 2), stagetest.Port(v1.IPv4Protocol, 2, 0)}
	bad := &proxy.Node{LocalTraffic: proxy.LocalTraffic{Interface: "two words"}}
	for i := range 40 {
		node, port := nodes[i*i%7%3], ports[i%4]
		if i%9 == 8 {
			node, port = bad, nil
		}
		want := append(before[:1:1], rendererOf(t, v1.IPv4Protocol).render(node, port, nil)...)
		if diff := cmp.Diff(want, r.render(node, port, before[:1:1]), cmp.AllowUnexported(key{})); diff != "" {
			t.Fatalf("step %d: objects (-fresh +got):\n%s", i, diff)
		}
	}
}
