package proxy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// nodeText formats a node without its empty fields.
func nodeText(n *Node) string {
	out := []string{n.Name}
	add := func(what string, list string) {
		if list != "[]" {
			out = append(out, what+list)
		}
	}
	if n.Zone != "" {
		out = append(out, "zone="+n.Zone)
	}
	add("", fmt.Sprint(n.Addresses))
	if n.NodePorts.All {
		out = append(out, "node-ports=all")
	}
	add("node-ports=", fmt.Sprint(n.NodePorts.Prefixes))
	add("loopback=", fmt.Sprint(n.NodePorts.Loopback))
	add("pods=", fmt.Sprint(n.LocalTraffic.Sources))
	add("services=", fmt.Sprint(n.ServiceCIDRs))
	return strings.Join(out, " ")
}

func TestNodeFollowsItsObject(t *testing.T) { //nolint:funlen // a table
	address := func(kind v1.NodeAddressType, a string) v1.NodeAddress { return v1.NodeAddress{Type: kind, Address: a} }
	status := func(list ...v1.NodeAddress) *v1.Node {
		n := objects.Node("here", "a")
		n.Status.Addresses = list
		return n
	}
	podCIDRs := func(old string, list ...string) *v1.Node {
		n := objects.Node("here", "")
		n.Spec.PodCIDR, n.Spec.PodCIDRs = old, list
		return n
	}
	for _, tc := range []struct {
		name     string
		options  TrackerOptions
		node     *v1.Node
		want     string
		problems []string
	}{
		{"nothing known: no node ports", TrackerOptions{}, nil, "here", nil},
		{
			"nothing but options", TrackerOptions{NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, nil,
			"here [192.0.2.1] node-ports=[192.0.2.1/32]", nil,
		},
		{
			"internal before external, one primary per family", TrackerOptions{},
			status(
				address(v1.NodeExternalIP, "203.0.113.1"), address(v1.NodeHostName, "here"), address(v1.NodeInternalIP, "192.0.2.1"),
				address(v1.NodeInternalIP, "2001:db8::1"), address(v1.NodeInternalIP, "192.0.2.2"), address(v1.NodeExternalIP, "192.0.2.1"),
			),
			"here zone=a [192.0.2.1 2001:db8::1 192.0.2.2 203.0.113.1] node-ports=[192.0.2.1/32 2001:db8::1/128]", nil,
		},
		{
			"object before options", TrackerOptions{NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}, status(address(v1.NodeInternalIP, "192.0.2.1")),
			"here zone=a [192.0.2.1] node-ports=[192.0.2.1/32]", nil,
		},
		{
			"options while the object has none", TrackerOptions{NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}, status(),
			"here zone=a [192.0.2.9] node-ports=[192.0.2.9/32]", nil,
		},
		{
			"loopback is never primary", TrackerOptions{}, status(address(v1.NodeInternalIP, "127.0.0.1"), address(v1.NodeInternalIP, "192.0.2.1")),
			"here zone=a [127.0.0.1 192.0.2.1] node-ports=[192.0.2.1/32]", nil,
		},
		{"loopback alone", TrackerOptions{}, status(address(v1.NodeInternalIP, "127.0.0.1")), "here zone=a [127.0.0.1]", nil},
		{
			"bad address", TrackerOptions{}, status(address(v1.NodeInternalIP, "x"), address(v1.NodeInternalIP, "192.0.2.1")),
			"here zone=a [192.0.2.1] node-ports=[192.0.2.1/32]", []string{`Node here: status.addresses[0].address: "x" is not an IP address`},
		},
		{"all", TrackerOptions{NodePortAddresses: NodePortAddresses{All: true}}, objects.Node("here", "", "192.0.2.1"), "here [192.0.2.1] node-ports=all", nil},
		{
			"prefixes", TrackerOptions{NodePortAddresses: NodePortAddresses{Prefixes: prefixes("10.0.0.0/8")}}, objects.Node("here", "", "192.0.2.1"),
			"here [192.0.2.1] node-ports=[10.0.0.0/8]", nil,
		},
		{
			"primary and prefixes", TrackerOptions{NodePortAddresses: NodePortAddresses{Primary: true, Prefixes: prefixes("10.0.0.0/8")}}, objects.Node("here", "", "192.0.2.1", "fd00::1"),
			"here [192.0.2.1 fd00::1] node-ports=[10.0.0.0/8 192.0.2.1/32 fd00::1/128]", nil,
		},
		{
			"primary and loopback", TrackerOptions{NodePortAddresses: NodePortAddresses{Primary: true, Loopback: prefixes("::1/128")}}, objects.Node("here", "", "192.0.2.1"),
			"here [192.0.2.1] node-ports=[192.0.2.1/32] loopback=[::1/128]", nil,
		},
		{"loopback", TrackerOptions{NodePortAddresses: NodePortAddresses{Loopback: prefixes("::1/128")}}, objects.Node("here", "", "192.0.2.1"), "here [192.0.2.1] loopback=[::1/128]", nil},
		{"pod ranges without NodePodCIDRs", TrackerOptions{}, podCIDRs("10.1.0.0/24"), "here", nil},
		{"pod ranges", TrackerOptions{LocalTraffic: LocalTraffic{NodePodCIDRs: true}}, podCIDRs("10.1.0.0/24", "10.1.0.0/24", "fd01::/64"), "here pods=[10.1.0.0/24 fd01::/64]", nil},
		{"old pod range", TrackerOptions{LocalTraffic: LocalTraffic{NodePodCIDRs: true}}, podCIDRs("10.1.0.0/24"), "here pods=[10.1.0.0/24]", nil},
		{
			"pod ranges beside others", TrackerOptions{LocalTraffic: LocalTraffic{NodePodCIDRs: true, Sources: prefixes("10.2.0.0/16", "10.1.0.0/16")}}, podCIDRs("10.1.7.0/24", "10.3.0.0/24"),
			"here pods=[10.1.0.0/16 10.2.0.0/16 10.3.0.0/24]", []string(nil),
		},
		{
			"bad pod range", TrackerOptions{LocalTraffic: LocalTraffic{NodePodCIDRs: true}}, podCIDRs("", "x", "10.1.0.0/24"), "here pods=[10.1.0.0/24]",
			[]string{`Node here: spec.podCIDRs: "x" is not in CIDR notation`},
		},
		{"service ranges", TrackerOptions{ServiceCIDRs: prefixes("fd00::/112", "10.96.0.0/16", "10.96.1.0/24")}, nil, "here services=[10.96.0.0/16 fd00::/112]", nil},
	} {
		tc.options.NodeName = "here"
		tr := NewServiceChangeTracker(tc.options)
		tr.UpdateNode(objects.Node("there", "b", "192.0.2.77"))
		if tc.node != nil {
			tr.UpdateNode(tc.node)
		}
		tr.Synced()
		s := newest(t, tr)
		if got := nodeText(s.Node()); got != tc.want {
			t.Errorf("%s:\n got node %s\nwant node %s", tc.name, got, tc.want)
		}
		testenv.Same(t, tc.problems, problemText(s), "%s: problems", tc.name)
	}
}

// TestNodeGone: after the Node object is deleted, its last state stays in effect, and a
// problem reports that until there is an object again.
func TestNodeGone(t *testing.T) {
	tr := newTestTracker(func(o *TrackerOptions) { o.LocalTraffic = LocalTraffic{NodePodCIDRs: true} })
	object := objects.Node("here", "a", "192.168.0.1")
	object.Spec.PodCIDRs = []string{"10.1.0.0/24"}
	tr.UpdateNode(object)
	tr.Synced()
	before := newest(t, tr)
	tr.UpdateNode(nil)
	gone := newest(t, tr)
	if !gone.Node().Equal(before.Node()) {
		t.Errorf("got node %s, want %s", nodeText(gone.Node()), nodeText(before.Node()))
	}
	want := []string{"Node here: metadata.name: the Node object was deleted; its last state stays in effect"}
	testenv.Same(t, want, problemText(gone), "problems")
	tr.UpdateNode(object)
	if got := problemText(newest(t, tr)); len(got) != 0 {
		t.Errorf("node added again: got problems %q, want none", got)
	}
	nameless := NewServiceChangeTracker(TrackerOptions{})
	nameless.UpdateNode(nil)
	nameless.Synced()
	if got := problemText(newest(t, nameless)); len(got) != 0 {
		t.Errorf("without NodeName: got problems %q, want none", got)
	}
}

// TestNodeChangesAreLive: a new zone, address or pod range takes effect at once,
// also on existing ports.
func TestNodeChangesAreLive(t *testing.T) {
	tr := newTestTracker(func(o *TrackerOptions) {
		o.LocalTraffic = LocalTraffic{NodePodCIDRs: true}
		o.NodeAddresses = nil
	})
	tr.UpdateService(apiService("web", "10.96.0.1", objects.LoadBalancer("198.51.100.1"), objects.SourceRanges("192.168.0.0/24"), objects.NodePort(30080)))
	tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.1 zones=a", "10.0.0.2 zones=b"))
	nodePortPacket := Packet{
		Protocol: v1.ProtocolTCP, Source: netip.MustParseAddrPort("203.0.113.9:999"), Interface: "eth0",
		Destination: netip.MustParseAddrPort("192.168.0.1:30080"), ToNode: true,
	}
	look := func() string {
		s := newest(t, tr)
		p := get(t, s, portName("web"))
		return fmt.Sprint(frontendText(p.Frontends)[1], " ", p.Frontends[0].FromOutside.Masquerade, " ", addrs(s, p.Name), " ", Route(s, nodePortPacket).Action)
	}
	node := objects.Node("here", "a", "192.168.0.1")
	if got, want := look(), "LoadBalancer 198.51.100.1:80 [192.168.0.0/24] never [10.0.0.1:8080 10.0.0.2:8080] pass"; got != want {
		t.Errorf("before the Node is known:\n got %s\nwant %s", got, want)
	}
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, "LoadBalancer 198.51.100.1:80 [192.168.0.0/24 198.51.100.1/32] never [10.0.0.1:8080] forward"},
		{func() { node.Labels[v1.LabelTopologyZone] = "b" }, "LoadBalancer 198.51.100.1:80 [192.168.0.0/24 198.51.100.1/32] never [10.0.0.2:8080] forward"},
		{func() { node.Spec.PodCIDR = "10.0.0.0/24" }, "LoadBalancer 198.51.100.1:80 [192.168.0.0/24 198.51.100.1/32] always [10.0.0.2:8080] forward"},
		{func() { node.Status.Addresses[0].Address = "192.168.9.1" }, "LoadBalancer 198.51.100.1:80 [192.168.0.0/24] always [10.0.0.2:8080] pass"},
		{func() { node.Labels, node.Spec.PodCIDR = nil, "" }, "LoadBalancer 198.51.100.1:80 [192.168.0.0/24] never [10.0.0.1:8080 10.0.0.2:8080] pass"},
	} {
		step.change()
		tr.UpdateNode(node)
		if got := look(); got != step.want {
			t.Errorf("\n got %s\nwant %s", got, step.want)
		}
	}
}

// TestNodePortsWithoutAddress: if node ports use the primary addresses and the node has
// none, a problem reports that as long as there are node ports.
func TestNodePortsWithoutAddress(t *testing.T) {
	four := "Node here: status.addresses: the node has no known IPv4 address, so node ports of this family are not served"
	six := "Node here: status.addresses: the node has no known IPv6 address, so node ports of this family are not served"
	for _, tc := range []struct {
		name  string
		ports NodePortAddresses
		node  *v1.Node
		want  []string
	}{
		{"nothing known", NodePortAddresses{}, nil, []string{four, six}},
		{"IPv4 known", NodePortAddresses{}, objects.Node("here", "a", "192.168.0.1"), []string{six}},
		{"both known", NodePortAddresses{}, objects.Node("here", "a", "192.168.0.1", "fd00::1"), nil},
		{"all", NodePortAddresses{All: true}, nil, nil},
		{"all and primary", NodePortAddresses{All: true, Primary: true}, nil, nil},
		{"primary and loopback", NodePortAddresses{Primary: true, Loopback: prefixes("127.0.0.0/8")}, objects.Node("here", "a", "192.168.0.1"), []string{six}},
		{"primary and a range", NodePortAddresses{Primary: true, Prefixes: prefixes("fd00::/8")}, objects.Node("here", "a", "192.168.0.1"), nil},
		{"loopback", NodePortAddresses{Loopback: prefixes("127.0.0.0/8")}, nil, nil},
		{"one family by choice", NodePortAddresses{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}}, nil, nil},
	} {
		tr := newTestTracker(func(o *TrackerOptions) { o.NodeAddresses, o.NodePortAddresses = nil, tc.ports })
		tr.UpdateService(apiService("web", "10.96.0.1", objects.ClusterIPs("10.96.0.1", "fd00:96::1"), objects.NodePort(30080)))
		if tc.node != nil {
			tr.UpdateNode(tc.node)
		}
		testenv.Same(t, tc.want, problemText(newest(t, tr)), "%s: problems", tc.name)
		tr.UpdateService(apiService("web", "10.96.0.1"))
		testenv.Same(t, []string(nil), problemText(newest(t, tr)), "%s, without node ports: problems", tc.name)
	}
}

// TestOptionsAreCopied: later changes of the caller's slices have no effect.
func TestOptionsAreCopied(t *testing.T) {
	o := TrackerOptions{
		NodeName:          "here",
		NodeAddresses:     []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		NodePortAddresses: NodePortAddresses{Prefixes: prefixes("192.0.2.0/24"), Loopback: prefixes("127.0.0.0/8")},
		LocalTraffic:      LocalTraffic{Sources: prefixes("10.0.0.0/8")},
		ServiceCIDRs:      prefixes("10.96.0.0/16"),
	}
	tr := NewServiceChangeTracker(o)
	tr.Synced()
	s := newest(t, tr)
	before := fingerprint(s)
	o.NodeAddresses[0] = netip.MustParseAddr("192.0.2.2")
	for _, list := range [][]netip.Prefix{o.NodePortAddresses.Prefixes, o.NodePortAddresses.Loopback, o.LocalTraffic.Sources, o.ServiceCIDRs} {
		list[0] = netip.MustParsePrefix("::/0")
	}
	tr.UpdateNode(objects.Node("here", ""))
	if fingerprint(s) != before {
		t.Errorf("the published node changed with the options: got %s", nodeText(s.Node()))
	}
	if got, want := nodeText(newest(t, tr).Node()), "here [192.0.2.1] node-ports=[192.0.2.0/24] loopback=[127.0.0.0/8] pods=[10.0.0.0/8] services=[10.96.0.0/16]"; got != want {
		t.Errorf("a node from changed options:\n got %s\nwant %s", got, want)
	}
}

func TestParseNodePortAddresses(t *testing.T) {
	loopback := prefixes("127.0.0.0/8", "::1/128")
	for _, tc := range []struct {
		list string
		want NodePortAddresses
		err  string
	}{
		{"", NodePortAddresses{}, ""},
		{"primary", NodePortAddresses{Primary: true}, ""},
		{"all", NodePortAddresses{All: true}, ""},
		{"localhost", NodePortAddresses{Loopback: loopback}, ""},
		{"primary localhost", NodePortAddresses{Primary: true, Loopback: loopback}, ""},
		{"primary 127.0.0.0/8", NodePortAddresses{Primary: true, Loopback: loopback[:1]}, ""},
		{"::1/128 primary", NodePortAddresses{Primary: true, Loopback: loopback[1:]}, ""},
		{"all localhost", NodePortAddresses{All: true, Loopback: loopback}, ""},
		{"0.0.0.0/0 localhost", NodePortAddresses{Prefixes: prefixes("0.0.0.0/0"), Loopback: loopback}, ""},
		{"localhost primary all", NodePortAddresses{All: true, Primary: true, Loopback: loopback}, ""},
		{"localhost 127.0.0.1/32", NodePortAddresses{Loopback: loopback}, ""},
		{"127.0.0.7/32 localhost 127.0.0.7/32", NodePortAddresses{Loopback: prefixes("127.0.0.0/8", "127.0.0.7/32", "::1/128")}, ""},
		{"primary 10.0.0.0/8", NodePortAddresses{Primary: true, Prefixes: prefixes("10.0.0.0/8")}, ""},
		{"10.0.0.0/8 all", NodePortAddresses{All: true, Prefixes: prefixes("10.0.0.0/8")}, ""},
		{"10.0.0.0/8 10.0.0.0/8", NodePortAddresses{Prefixes: prefixes("10.0.0.0/8")}, ""},
		{"126.0.0.0/7", NodePortAddresses{Prefixes: prefixes("126.0.0.0/7")}, ""},
		{"192.0.2.7/24 10.0.0.0/8 10.1.0.0/16", NodePortAddresses{Prefixes: prefixes("10.0.0.0/8", "192.0.2.0/24")}, ""},
		{"2001:db8::/32", NodePortAddresses{Prefixes: prefixes("2001:db8::/32")}, ""},
		{"192.0.2.7", NodePortAddresses{}, `[0]: want primary, localhost, all or a CIDR: "192.0.2.7" is not in CIDR notation`},
		{"primary Localhost", NodePortAddresses{}, `[1]: want primary, localhost, all or a CIDR: "Localhost" is not in CIDR notation`},
		{"all 10.0.0.0/33", NodePortAddresses{}, `[1]: want primary, localhost, all or a CIDR: "10.0.0.0/33" has no valid prefix length`},
		{"primary all primary", NodePortAddresses{}, `[2]: the word "primary" is repeated`},
		{"localhost localhost", NodePortAddresses{}, `[1]: the word "localhost" is repeated`},
	} {
		got, err := ParseNodePortAddresses(strings.Fields(tc.list)...)
		if !got.Equal(tc.want) {
			t.Errorf("%q: got %+v, want %+v", tc.list, got, tc.want)
		}
		if text := fmt.Sprint(err); tc.err == "" && err != nil || tc.err != "" && text != tc.err {
			t.Errorf("%q: got error %q, want %q", tc.list, text, tc.err)
		}
	}
}

func TestLoopbackAddresses(t *testing.T) {
	for ranges, want := range map[string]string{
		"": "[]", "127.0.0.0/8": "[127.0.0.1]", "127.0.0.0/8 ::1/128": "[127.0.0.1 ::1]", "127.0.0.7/32 127.0.0.0/8": "[127.0.0.1 127.0.0.7]",
		"127.1.0.0/16": "[]", "127.0.0.1/32": "[127.0.0.1]", "::1/128": "[::1]", "192.0.2.1/32": "[]", "127.0.0.0/30 127.0.0.0/8": "[127.0.0.1]",
	} {
		if got := fmt.Sprint(NodePortAddresses{Loopback: prefixes(strings.Fields(ranges)...)}.LoopbackAddresses()); got != want {
			t.Errorf("%q: got %s, want %s", ranges, got, want)
		}
	}
}

func TestLocalTraffic(t *testing.T) {
	v4 := LocalTraffic{Sources: prefixes("10.0.0.0/8")}
	bridge, veth := LocalTraffic{Interface: "cni0"}, LocalTraffic{InterfacePrefix: "veth"}
	for _, tc := range []struct {
		traffic       LocalTraffic
		source, iface string
		match         bool
		v4, v6        bool
	}{
		{LocalTraffic{}, "10.0.0.1", "cni0", false, false, false},
		{v4, "10.0.0.1", "", true, true, false},
		{v4, "11.0.0.1", "cni0", false, true, false},
		{v4, "fd00::1", "cni0", false, true, false},
		{LocalTraffic{Sources: prefixes("10.0.0.0/8", "fd00::/8")}, "fd00::1", "", true, true, true},
		{bridge, "11.0.0.1", "cni0", true, true, true},
		{bridge, "11.0.0.1", "cni01", false, true, true},
		{bridge, "11.0.0.1", "", false, true, true},
		{veth, "11.0.0.1", "veth1234", true, true, true},
		{veth, "11.0.0.1", "eth0", false, true, true},
		{veth, "11.0.0.1", "", false, true, true},
	} {
		if got := tc.traffic.Match(netip.MustParseAddr(tc.source), tc.iface); got != tc.match {
			t.Errorf("%+v: match of %s by %q: got %v, want %v", tc.traffic, tc.source, tc.iface, got, tc.match)
		}
		if v4, v6 := tc.traffic.Detects(v1.IPv4Protocol), tc.traffic.Detects(v1.IPv6Protocol); v4 != tc.v4 || v6 != tc.v6 {
			t.Errorf("%+v: detects IPv4, IPv6: got %v, %v, want %v, %v", tc.traffic, v4, v6, tc.v4, tc.v6)
		}
	}
}

func TestNodeEqual(t *testing.T) {
	full := func() *Node {
		return &Node{
			Name: "here", Zone: "a", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			NodePorts:    NodePortAddresses{Prefixes: prefixes("192.0.2.0/24")},
			LocalTraffic: LocalTraffic{Sources: prefixes("10.0.0.0/8")},
			ServiceCIDRs: prefixes("10.96.0.0/16"),
		}
	}
	if !full().Equal(full()) || full().Equal(nil) || (*Node)(nil).Equal(full()) || !(*Node)(nil).Equal(nil) {
		t.Error("Equal: want true for equal content and for two nil nodes, false for nil and a node")
	}
	for i, change := range []func(*Node){
		func(n *Node) { n.Name = "x" },
		func(n *Node) { n.Zone = "x" },
		func(n *Node) { n.Addresses = nil },
		func(n *Node) { n.NodePorts.All = true },
		func(n *Node) { n.NodePorts.Primary = true },
		func(n *Node) { n.NodePorts.Loopback = prefixes("127.0.0.0/8") },
		func(n *Node) { n.NodePorts.Prefixes = nil },
		func(n *Node) { n.LocalTraffic.Sources = nil },
		func(n *Node) { n.LocalTraffic.NodePodCIDRs = true },
		func(n *Node) { n.LocalTraffic.Interface = "x" },
		func(n *Node) { n.LocalTraffic.InterfacePrefix = "x" },
		func(n *Node) { n.ServiceCIDRs = nil },
	} {
		n := full()
		if change(n); n.Equal(full()) || full().Equal(n) {
			t.Errorf("change %d: got %+v equal to %+v, want different", i, n, full())
		}
	}
}
