package proxy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func forward(pool Pool, m Masquerade) TrafficRoute {
	return TrafficRoute{Action: Forward, Pool: pool, Masquerade: m}
}

func oneEndpoint(addr string) []*endpoints.Endpoint {
	return []*endpoints.Endpoint{{Addr: netip.MustParseAddrPort(addr), Ready: true}}
}

// routeSnapshot has one port with a frontend of each kind, which differ in
// their routes, and one for UDP.
func routeSnapshot() Snapshot {
	node := &Node{
		Name:         "here",
		Addresses:    []netip.Addr{netip.MustParseAddr("192.168.0.1")},
		NodePorts:    NodePortAddresses{Prefixes: prefixes("192.168.0.0/24")},
		LocalTraffic: LocalTraffic{Sources: prefixes("10.0.0.0/8"), Interface: "cni0"},
		ServiceCIDRs: prefixes("10.96.0.0/16"),
	}
	web := &ServicePort{
		Name:     portName("web"),
		Affinity: affinity.Config{Timeout: time.Minute},
		Cluster:  append(oneEndpoint("10.0.0.5:8080"), oneEndpoint("192.168.0.1:8080")...),
		Local:    oneEndpoint("10.0.0.5:8080"),
		Frontends: []Frontend{
			{Addr: netip.MustParseAddrPort("10.96.0.1:80"), FromInside: forward(PoolCluster, MasqueradeNonPods), FromOutside: forward(PoolCluster, MasqueradeAlways)},
			{Kind: ExternalIP, Addr: netip.MustParseAddrPort("198.51.100.1:80"), FromInside: forward(PoolCluster, MasqueradeNever), FromOutside: TrafficRoute{Action: Drop}},
			{
				Kind: LoadBalancer, Addr: netip.MustParseAddrPort("198.51.100.2:80"), Restricted: true, AllowedSources: prefixes("203.0.113.0/24"),
				FromInside: forward(PoolCluster, MasqueradeNonPods), FromOutside: forward(PoolLocal, MasqueradeNever),
			},
			{Kind: NodePort, Addr: netip.MustParseAddrPort("0.0.0.0:30080"), FromInside: TrafficRoute{Action: Reject}, FromOutside: forward(PoolLocal, MasqueradeAlways)},
		},
	}
	udp := &ServicePort{Name: ServicePortName{NamespacedName: objectName("dns"), Protocol: v1.ProtocolUDP, Family: v1.IPv4Protocol}}
	udp.Frontends = []Frontend{
		{Addr: netip.MustParseAddrPort("10.96.0.2:53"), FromInside: TrafficRoute{Action: Reject}, FromOutside: TrafficRoute{Action: Pass}},
		{Kind: LoadBalancer, Addr: netip.MustParseAddrPort("198.51.100.3:53"), Restricted: true},
	}
	return NewSnapshot(node, web, udp)
}

// verdictText formats a verdict on one line: what happens to the packet, then why.
func verdictText(v Verdict) string {
	words := []string{v.Action.String()}
	for _, d := range v.Endpoints {
		text := d.Addr.String()
		if d.Masquerade {
			text += "+"
		}
		words = append(words, text)
	}
	if v.Affinity.Enabled() {
		words = append(words, "sticky")
	}
	return strings.Join(words, " ") + ": " + strings.Join(v.Reasons, "; ")
}

func TestRoute(t *testing.T) {
	const (
		isClusterIP  = "10.96.0.1:80/TCP is the ClusterIP of ns/web:http/TCP/IPv4; "
		isExternal   = "198.51.100.1:80/TCP is the ExternalIP of ns/web:http/TCP/IPv4; "
		isLB         = "198.51.100.2:80/TCP is the LoadBalancer of ns/web:http/TCP/IPv4; "
		isNodePort   = "192.168.0.1:30080/TCP is the NodePort of ns/web:http/TCP/IPv4, and 192.168.0.1 serves node ports; "
		fromPod      = "the packet comes from a pod; "
		fromNode     = "the packet comes from the node itself; "
		fromOutside  = "the packet comes from outside; "
		sticky       = "; a client keeps its endpoint until 1m0s after its last connection"
		twoEndpoints = "one of the 2 endpoints of the cluster pool gets it; masquerade: "
		oneOfLocal   = "one of the 1 endpoints of the local pool gets it; masquerade: "
		stays        = "; 192.168.0.1:8080 is on the node itself, so the packet does not leave it"
		hairpin      = "; client and endpoint are both 10.0.0.5:8080 (hairpin), so the packet is masqueraded"
	)
	for _, tc := range []struct{ name, packet, want string }{
		{"pod to ClusterIP", "TCP 10.0.0.9 cni0 10.96.0.1:80", "forward 10.0.0.5:8080 192.168.0.1:8080 sticky: " + isClusterIP + fromPod + twoEndpoints + "non-pods" + sticky},
		{"pod by interface", "TCP 172.16.0.9 cni0 10.96.0.1:80", "forward 10.0.0.5:8080 192.168.0.1:8080 sticky: " + isClusterIP + fromPod + twoEndpoints + "non-pods" + sticky},
		{"pod to itself", "TCP 10.0.0.5 cni0 10.96.0.1:80", "forward 10.0.0.5:8080+ 192.168.0.1:8080 sticky: " + isClusterIP + fromPod + twoEndpoints + "non-pods" + sticky + hairpin},
		{"node to ClusterIP", "TCP 192.168.0.1 node 10.96.0.1:80", "forward 10.0.0.5:8080+ 192.168.0.1:8080+ sticky: " + isClusterIP + fromNode + twoEndpoints + "non-pods" + sticky},
		{"outside to ClusterIP", "TCP 203.0.113.5 eth0 10.96.0.1:80", "forward 10.0.0.5:8080+ 192.168.0.1:8080 sticky: " + isClusterIP + fromOutside + twoEndpoints + "always" + sticky + stays},
		{"never masqueraded", "TCP 10.0.0.9 cni0 198.51.100.1:80", "forward 10.0.0.5:8080 192.168.0.1:8080 sticky: " + isExternal + fromPod + twoEndpoints + "never" + sticky},
		{"dropped", "TCP 203.0.113.5 eth0 198.51.100.1:80", "drop: " + isExternal + fromOutside + "the Local traffic policy finds no endpoint on this node"},
		{"allowed source", "TCP 203.0.113.5 eth0 198.51.100.2:80", "forward 10.0.0.5:8080 sticky: " + isLB + "203.0.113.5 is in the allowed source ranges; " + fromOutside + oneOfLocal + "never" + sticky},
		{"denied source", "TCP 203.0.114.5 eth0 198.51.100.2:80", "drop: " + isLB + "203.0.114.5 is not in the allowed source ranges"},
		{"closed", "UDP 10.0.0.9 cni0 198.51.100.3:53", "drop: 198.51.100.3:53/UDP is the LoadBalancer of ns/dns/UDP/IPv4; 10.0.0.9 is not in the allowed source ranges"},
		{"node port", "TCP 203.0.113.5 eth0 192.168.0.1:30080 here", "forward 10.0.0.5:8080+ sticky: " + isNodePort + fromOutside + oneOfLocal + "always" + sticky},
		{"rejected", "TCP 10.0.0.9 cni0 192.168.0.1:30080 here", "reject: " + isNodePort + fromPod + "no endpoint anywhere can serve"},
		{"node port of another node", "TCP 203.0.113.5 eth0 192.168.0.1:30080", "pass: 192.168.0.1 is an address of the node, and no frontend; node ports answer only packets with ToNode"},
		{"node port, address not chosen", "TCP 203.0.113.5 eth0 192.168.1.1:30080 here", "pass: 192.168.1.1 is not among the addresses that serve node ports; 192.168.1.1:30080 is no address of any Service"},
		{"node port on loopback", "TCP 127.0.0.1 node 127.0.0.1:30080 here", "pass: 127.0.0.1 is not among the loopback addresses that serve node ports; 127.0.0.1:30080 is no address of any Service"},
		{"node port, other protocol", "UDP 203.0.113.5 eth0 192.168.0.1:30080 here", "pass: 192.168.0.1 is an address of the node, and no frontend"},
		{"node port of no Service", "TCP 203.0.113.5 eth0 192.168.0.1:30081 here", "pass: 192.168.0.1 is an address of the node, and no frontend"},
		{"ClusterIP, other port", "TCP 10.0.0.9 cni0 10.96.0.1:81", "reject: 10.96.0.1 is the ClusterIP of ns/web, which has no such port"},
		{"ClusterIP, other protocol", "UDP 10.0.0.9 cni0 10.96.0.1:80", "reject: 10.96.0.1 is the ClusterIP of ns/web, which has no such port"},
		{"ClusterIP, no ports", "ICMP 10.0.0.9 cni0 10.96.0.1:0", "reject: 10.96.0.1 is the ClusterIP of ns/web, which has no such port"},
		{"external IP, other port", "TCP 10.0.0.9 cni0 198.51.100.1:81", "pass: 198.51.100.1:81 is no address of any Service"},
		{"service range", "TCP 10.0.0.9 cni0 10.96.7.7:80", "drop: 10.96.7.7 lies in the service range 10.96.0.0/16, but no Service has it"},
		{"elsewhere", "TCP 10.0.0.9 cni0 1.1.1.1:80", "pass: 1.1.1.1:80 is no address of any Service"},
		{"passed by its route", "UDP 203.0.113.5 eth0 10.96.0.2:53", "pass: 10.96.0.2:53/UDP is the ClusterIP of ns/dns/UDP/IPv4; the packet comes from outside; the route passes the packet"},
		{"IPv6", "TCP fd00::1 cni0 [fd00::2]:80", "pass: [fd00::2]:80 is no address of any Service"},
	} {
		testenv.Same(t, tc.want, verdictText(Route(routeSnapshot(), packet(tc.packet))), "%s: verdict", tc.name)
	}
	testenv.Same(t, "pass: no snapshot yet", verdictText(Route(Snapshot{}, packet("TCP 10.0.0.9 cni0 10.96.0.1:80"))), "zero snapshot")
}

// packet parses protocol, source, interface (node: sent by the node), destination, and
// here if the destination is on the node.
func packet(text string) Packet {
	words := strings.Fields(text)
	p := Packet{
		Protocol:    v1.Protocol(words[0]),
		Source:      netip.AddrPortFrom(netip.MustParseAddr(words[1]), 40000),
		Interface:   words[2],
		Destination: netip.MustParseAddrPort(words[3]),
		ToNode:      len(words) > 4,
	}
	if p.Interface == "node" {
		p.FromNode, p.Interface = true, ""
	}
	return p
}

func TestVerdictNamesTheFrontend(t *testing.T) {
	s := routeSnapshot()
	v := Route(s, packet("TCP 203.0.113.5 eth0 198.51.100.2:80"))
	if web := get(t, s, portName("web")); v.Name != web.Name || !v.Frontend.Equal(web.Frontends[2]) {
		t.Errorf("got %s and frontend %+v, want %s and its load-balancer frontend", v.Name, v.Frontend, web.Name)
	}
	v = Route(s, packet("TCP 10.0.0.9 cni0 10.96.0.1:81"))
	if v.Name != (ServicePortName{}) || !v.Frontend.Equal(Frontend{}) {
		t.Errorf("no frontend: got %s and %+v, want none of either", v.Name, v.Frontend)
	}
}

// TestRouteToLoopback: node ports answer at the loopback addresses that were named, to processes of
// the node alone, as they do at other addresses of the node, and endpoints see the node.
func TestRouteToLoopback(t *testing.T) {
	tr := newTestTracker(func(o *TrackerOptions) {
		o.NodePortAddresses = NodePortAddresses{Primary: true, Loopback: prefixes("127.0.0.0/8", "127.0.0.7/32", "::1/128")}
		o.LocalTraffic.Sources = prefixes("10.0.0.0/8")
	})
	tr.UpdateService(apiService("web", "", objects.ClusterIPs("10.96.0.1", "fd00::1"), objects.NodePort(30080), objects.ExternalLocal))
	tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.5"))
	s := newest(t, tr)
	for _, tc := range []struct{ packet, want string }{
		{"TCP 127.0.0.1 node 127.0.0.1:30080 here", "forward 10.0.0.5:8080+"},
		{"TCP 127.0.0.9 node 127.0.0.7:30080 here", "forward 10.0.0.5:8080+"},
		{"TCP 192.168.0.1 node 127.0.0.1:30080 here", "forward 10.0.0.5:8080+"},
		{"TCP 10.0.0.1 node 127.0.0.1:30080 here", "forward 10.0.0.5:8080+"},
		{"TCP ::1 node [::1]:30080 here", "reject"},
		{"TCP 127.0.0.1 node 127.0.0.2:30080 here", "pass"},
		{"TCP 127.0.0.1 node 127.0.0.1:30081 here", "pass"},
		{"UDP 127.0.0.1 node 127.0.0.1:30080 here", "pass"},
		{"TCP 127.0.0.1 eth0 127.0.0.1:30080 here", "pass"},
		{"TCP 10.0.0.9 cni0 127.0.0.1:30080 here", "pass"},
	} {
		v := Route(s, packet(tc.packet))
		if got, _, _ := strings.Cut(verdictText(v), ": "); got != tc.want {
			t.Errorf("%s: got %s (%q), want %s", tc.packet, got, v.Reasons, tc.want)
		}
		checkVerdict(t, v)
	}
}

// TestAllNodePortAddresses: "all" serves every address but loopback ones.
func TestAllNodePortAddresses(t *testing.T) {
	tr := newTestTracker(func(o *TrackerOptions) { o.NodePortAddresses.All = true })
	tr.UpdateService(apiService("web", "", objects.ClusterIPs("10.96.0.1", "fd00::1"), objects.NodePort(30080)))
	s := newest(t, tr)
	for to, want := range map[string]Action{
		"192.168.0.1:30080": Reject, "1.2.3.4:30080": Reject, "[2001:db8::1]:30080": Reject, "127.0.0.1:30080": Pass, "[::1]:30080": Pass,
	} {
		if v := Route(s, packet("TCP 203.0.113.5 eth0 "+to+" here")); v.Action != want {
			t.Errorf("%s: got %s (%q), want %s", to, v.Action, v.Reasons, want)
		}
	}
}

func FuzzRoute(f *testing.F) {
	f.Add("TCP", "10.0.0.9:1", "10.96.0.1:80", uint16(0x300))
	f.Add("UDP", "[fd00::1]:1", "192.168.0.1:30080", uint16(0x203))
	f.Add("", "", "[fe80::1%eth0]:80", uint16(0x507))
	snapshots := []Snapshot{{}, NewSnapshot(nil), routeSnapshot()}
	for seed := range uint64(20) {
		w := newWorld(seed)
		tr := NewServiceChangeTracker(w.options())
		for range 30 {
			w.step(tr)
		}
		tr.Synced()
		snapshots = append(snapshots, newest(f, tr))
	}
	f.Fuzz(func(t *testing.T, protocol, source, destination string, flags uint16) {
		p := Packet{Protocol: v1.Protocol(protocol), FromNode: flags&1 != 0, ToNode: flags&2 != 0}
		if flags&4 != 0 {
			p.Interface = "cni0"
		}
		p.Source, _ = netip.ParseAddrPort(source)           // the zero value is a case too
		p.Destination, _ = netip.ParseAddrPort(destination) // the same
		checkVerdict(t, Route(snapshots[int(flags>>8)%len(snapshots)], p))
	})
}

// checkVerdict checks what is true of every verdict.
func checkVerdict(t *testing.T, v Verdict) {
	t.Helper()
	if len(v.Reasons) == 0 {
		t.Errorf("%s: got no reason, want one", v.Action)
	}
	if (v.Action == Forward) != (len(v.Endpoints) > 0) {
		t.Errorf("%s: got %d endpoints, want some only for forward", v.Action, len(v.Endpoints))
	}
	if v.Action == Forward && v.Name == (ServicePortName{}) {
		t.Error("forward: got no service port, want one")
	}
	for i := 1; i < len(v.Endpoints); i++ {
		if v.Endpoints[i-1].Addr.Compare(v.Endpoints[i].Addr) >= 0 {
			t.Errorf("endpoints: got order %v, want by address", v.Endpoints)
		}
	}
}
