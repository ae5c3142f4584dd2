package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// bridged is a network whose pods, two of them, are on one bridge of the node.
type bridged struct {
	network
	other *netns.NS
}

const (
	otherAddr   = "10.244.2.11"
	otherServer = otherAddr + ":8080"
	nodePort    = "10.244.1.1:30080"
	nodePort6   = "[fd00:1::1]:30080"
	service6    = "[fd00:96::1]:80"
	podServer6  = "[fd00:2::10]:8080"
	other6      = "fd00:2::11"
)

// newBridged makes a bridged network in which netfilter sees bridged packets, or does not.
func newBridged(t *testing.T, netfilter bool) bridged {
	t.Helper()
	n := bridged{network{netnstest.NewNS(t), netnstest.NewNS(t), netnstest.NewNS(t)}, netnstest.NewNS(t)}
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	err := errors.Join(
		netns.Link(netns.End{NS: n.node, Name: "clients"}, netns.End{NS: n.client, Name: "eth0"}),
		netns.Link(netns.End{NS: n.node, Name: "veth10"}, netns.End{NS: n.pod, Name: "eth0"}),
		netns.Link(netns.End{NS: n.node, Name: "veth11"}, netns.End{NS: n.other, Name: "eth0"}),
		n.node.Netlink().LinkAdd(bridge), n.node.Netlink().LinkSetUp(bridge),
		n.node.Forward(),
		n.node.AddAddress("clients", prefix("10.244.1.1/24")), n.node.AddAddress("clients", prefix("fd00:1::1/64")),
		n.node.AddAddress("br0", prefix("10.244.2.1/24")), n.node.AddAddress("br0", prefix("fd00:2::1/64")),
		n.node.AddRoute(netns.Route{To: prefix("0.0.0.0/0"), Link: "clients", Via: addr(clientAddr)}),
		n.node.AddRoute(netns.Route{To: prefix("::/0"), Link: "clients", Via: addr("fd00:1::10")}),
	)
	for _, port := range []string{"veth10", "veth11"} {
		l, lerr := n.node.Netlink().LinkByName(port)
		err = errors.Join(err, lerr, n.node.Netlink().LinkSetMaster(l, bridge))
	}
	for _, at := range []struct {
		ns           *netns.NS
		four, six    string
		gate4, gate6 string
	}{
		{n.client, clientAddr, "fd00:1::10", "10.244.1.1", "fd00:1::1"},
		{n.pod, podAddr, "fd00:2::10", "10.244.2.1", "fd00:2::1"},
		{n.other, otherAddr, other6, "10.244.2.1", "fd00:2::1"},
	} {
		err = errors.Join(err,
			at.ns.AddAddress("eth0", netip.PrefixFrom(addr(at.four), 24)), at.ns.AddAddress("eth0", netip.PrefixFrom(addr(at.six), 64)),
			at.ns.AddRoute(netns.Route{To: prefix("0.0.0.0/0"), Link: "eth0", Via: addr(at.gate4)}),
			at.ns.AddRoute(netns.Route{To: prefix("::/0"), Link: "eth0", Via: addr(at.gate6)}))
	}
	value := map[bool]string{false: "0", true: "1"}[netfilter]
	for _, name := range []string{"iptables", "ip6tables"} {
		err = errors.Join(err, n.node.Sysctl("net/bridge/bridge-nf-call-"+name, value))
	}
	testenv.NoError(t, err)
	return n
}

// from returns the network with another namespace as the client.
func (n network) from(client *netns.NS) network {
	n.client = client
	return n
}

// bridgedServices returns a Service in both families, with a node port, for TCP and UDP, whose
// endpoint is the pod of a bridged network.
func bridgedServices() proxy.Snapshot {
	ports := []*proxy.ServicePort{
		snapshots.Port("web/TCP", one+" :30080", podServer), snapshots.Port("web/UDP", one+" :30080", podServer),
		snapshots.Port("web/TCP", service6+" [::]:30080", podServer6), snapshots.Port("web/UDP", service6+" [::]:30080", podServer6),
	}
	return proxy.NewSnapshot(&proxy.Node{
		Name: "node", Addresses: snapshots.Addrs("10.244.1.1", "10.244.2.1", "fd00:1::1", "fd00:2::1"),
		NodePorts:    proxy.NodePortAddresses{All: true},
		ServiceCIDRs: snapshots.Prefixes("10.96.0.0/16", "fd00:96::/64"),
		LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes("10.244.2.0/24", "fd00:2::/64")},
	}, ports...)
}

// Another pod, the endpoint itself, outside and the node reach a Service whose endpoint is on a
// bridge, whether netfilter sees bridged packets or not.
func TestBridgedPods(t *testing.T) {
	t.Parallel()
	for _, netfilter := range []bool{false, true} {
		t.Run(fmt.Sprintf("netfilter=%v", netfilter), func(t *testing.T) {
			t.Parallel()
			forCaptures(t, func(t *testing.T, c userspace.Capture) { testBridged(t, newBridged(t, netfilter), c) })
		})
	}
}

func testBridged(t *testing.T, n bridged, c userspace.Capture) {
	t.Helper()
	servers := map[string]string{one: podServer, nodePort: podServer, service6: podServer6, nodePort6: podServer6}
	for _, at := range []string{podServer, podServer6} {
		n.serve(t, at)
		n.servePeerAddress(t, at)
	}
	b := n.start(t, userspace.Options{Capture: c})
	apply(t, b, bridgedServices())
	for _, client := range []struct {
		name string
		ns   *netns.NS
		sees []string // the addresses that the endpoint may see
	}{
		{"another pod", n.other, []string{"10.244.2.1", "fd00:2::1"}},
		{"the endpoint", n.pod, []string{"10.244.2.1", "fd00:2::1"}},
		{"outside", n.client, []string{clientAddr, "fd00:1::10"}},
		{"the node", n.node, []string{"10.244.2.1", "fd00:2::1", "10.244.1.1", "fd00:1::1"}},
	} {
		n := n.from(client.ns)
		sees := client.sees
		if c != userspace.TPROXY {
			sees = []string{"10.244.2.1", "fd00:2::1"}
		}
		for to, server := range servers {
			for range 3 {
				got, peer, _, err := n.askFor(t, to, 5*time.Second)
				if err != nil || got != server || !slices.Contains(sees, peer.Addr().String()) {
					t.Errorf("from %s to %s: got server %q, peer %v and error %v, want %s and a peer in %v", client.name, to, got, peer, err, server, sees)
					break
				}
			}
			peer, err := netip.ParseAddrPort(n.peerSeen(t, to))
			if err != nil || !slices.Contains(sees, peer.Addr().String()) {
				t.Errorf("datagram from %s to %s: got peer %v, want one of %v", client.name, to, peer, sees)
			}
		}
	}
	if s := b.Stats(); s.Failed+s.Denied+s.Crowded+s.Faults != 0 {
		t.Errorf("got %+v, want no failures", s)
	}
}

// Connections of a bridged pod continue after their Service was removed, for the grace period,
// and when netfilter begins or ceases to see bridged packets.
func TestBridgedConnectionsContinue(t *testing.T) {
	t.Parallel()
	for _, netfilter := range []string{"0", "1"} {
		t.Run("netfilter="+netfilter, func(t *testing.T) {
			t.Parallel()
			n := newBridged(t, netfilter == "1")
			n.serve(t, podServer)
			n.serve(t, podServer6)
			b := n.start(t, userspace.Options{})
			s := bridgedServices()
			apply(t, b, s)
			var conns []net.Conn
			for _, to := range []string{one, service6} {
				_, _, c, err := n.from(n.other).ask(t, to)
				testenv.NoError(t, err)
				conns = append(conns, c)
			}
			wantContinue := func(when string) {
				t.Helper()
				for _, c := range conns {
					_, err := c.Write([]byte("x"))
					if err == nil {
						_, err = io.ReadFull(c, make([]byte, 1))
					}
					if err = errors.Join(err, checkRetransmits(c)); err != nil {
						t.Errorf("%s: got error %v, want none", when, err)
					}
				}
			}
			wantContinue("at first")
			testenv.NoError(t, b.Apply(t.Context(), s, proxy.NewSnapshot(s.Node())))
			wantContinue("without the Service")
			for _, is := range []string{"1", "0", "1"} {
				for _, name := range []string{"iptables", "ip6tables"} {
					testenv.NoError(t, n.node.Sysctl("net/bridge/bridge-nf-call-"+name, is))
				}
				wantContinue("with netfilter " + is)
			}
		})
	}
}

// If the node has forgotten the flow of a bridged pod, the answer is lost, and the next datagram
// gets one.
func TestForgottenFlowsOfBridgedPods(t *testing.T) {
	t.Parallel()
	for _, netfilter := range []bool{false, true} {
		n := newBridged(t, netfilter)
		n.servePeerAddress(t, podServer)
		n.servePeerAddress(t, podServer6)
		apply(t, n.start(t, userspace.Options{}), bridgedServices())
		for _, to := range []string{one, service6} {
			c, err := n.other.Dial(t.Context(), "udp", to)
			testenv.NoError(t, err)
			for range 3 {
				if exchange(t.Context(), c, []byte("?")) == nil {
					t.Errorf("netfilter=%v, datagram to %s: got no answer, want one", netfilter, to)
				}
				n.forget(t)
			}
			_ = c.Close()
		}
	}
}

// If the node has forgotten the flow, an answer does not leave it with the address of the
// listener.
func TestLateAnswersToBridgedPods(t *testing.T) {
	t.Parallel()
	for _, netfilter := range []bool{false, true} {
		for to, at := range map[string]string{one: podServer, service6: podServer6} {
			t.Run(fmt.Sprintf("netfilter=%v/%s", netfilter, to), func(t *testing.T) {
				t.Parallel()
				testLateBridgedAnswers(t, newBridged(t, netfilter), to, at)
			})
		}
	}
}

func testLateBridgedAnswers(t *testing.T, n bridged, to, at string) {
	t.Helper()
	server, err := n.pod.ListenPacket(t.Context(), "udp", at)
	testenv.NoError(t, err)
	defer server.Close() //nolint:errcheck // the test is over
	apply(t, n.start(t, userspace.Options{}), bridgedServices())
	n.nft(t, `table inet watch {
		chain sent { type filter hook output priority -300; udp sport 16421 counter; }
		chain out { type filter hook postrouting priority 300
			ip saddr 0.0.0.0/8 counter drop
			ip6 saddr 100::/64 counter drop
		}
	}`)
	client, err := n.other.Dial(t.Context(), "udp", to)
	testenv.NoError(t, err)
	defer client.Close() //nolint:errcheck // the test is over
	if _, err := client.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	from := wantDatagram(t, server, "first")
	n.forget(t)
	if _, err := server.WriteTo([]byte("late"), from); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the late answer has been sent", func() bool {
		return strings.Contains(n.nft(t, "list table inet watch"), "udp sport 16421 counter packets 1 ")
	})
	if _, err := client.Write([]byte("second")); err != nil {
		t.Fatal(err)
	}
	if _, err := server.WriteTo([]byte("in time"), wantDatagram(t, server, "second")); err != nil {
		t.Fatal(err)
	}
	wantDatagram(t, connected{client}, "in time")
	if out := n.nft(t, "list table inet watch"); strings.Count(out, "counter packets 0 bytes 0 drop") != 2 {
		t.Errorf("answers have left with the addresses of listeners:\n%s", out)
	}
}

// connected makes a [net.PacketConn] of a connected socket for datagrams.
type connected struct{ net.Conn }

func (c connected) ReadFrom(b []byte) (int, net.Addr, error) {
	n, err := c.Read(b)
	return n, c.RemoteAddr(), err
}

func (c connected) WriteTo(b []byte, _ net.Addr) (int, error) { return c.Write(b) }

// peerSeen sends a datagram, and returns the client's address that the endpoint has seen.
func (n network) peerSeen(t *testing.T, to string) string {
	t.Helper()
	c, err := n.client.Dial(t.Context(), "udp", to)
	testenv.NoError(t, err)
	defer c.Close() //nolint:errcheck // the test is over
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return string(exchange(ctx, c, []byte("?")))
}

// If clients on one link cannot reach an endpoint, clients on other links still can.
func TestFailuresOfOneLink(t *testing.T) {
	t.Parallel()
	n := newBridged(t, false)
	for at, server := range map[*netns.NS]string{n.pod: podServer, n.other: otherServer} {
		network := n.network.at(at)
		network.serve(t, server)
	}
	b := n.start(t, userspace.Options{Timeouts: userspace.Timeouts{Dial: []time.Duration{100 * time.Millisecond}, Suspect: time.Hour}})
	s := bridgedServices()
	apply(t, b, s)
	// Like a network policy: packets of some clients do not reach the endpoint.
	if _, err := netnstest.Run(t, n.pod, "add table ip deny; add chain ip deny in { type filter hook input priority 0; }; add rule ip deny in ip saddr 10.244.1.16/28 drop", netnstest.NFT(t), "-f", "-"); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"10.244.1.20", "10.244.1.21"} {
		a := netip.MustParseAddr(from)
		testenv.NoError(t, n.client.AddAddress("eth0", netip.PrefixFrom(a, 24)))
		c, err := n.dialFrom(t, a)
		if err == nil {
			err = greeted(c, podServer)
			_ = c.Close()
		}
		if err == nil {
			t.Fatalf("%s: got an answer, want none with the policy", from)
		}
	}
	p := *firstOf(s)
	p.Cluster = []*endpoints.Endpoint{p.Cluster[0], {Addr: netip.MustParseAddrPort(otherServer), Ready: true, Serving: true}}
	testenv.NoError(t, b.Apply(t.Context(), s, both(proxy.NewSnapshot(s.Node(), &p), withoutPort(s, p.Name))))
	for name, from := range map[string]*netns.NS{"a pod": n.other, "the node": n.node} {
		servers := map[string]int{}
		for range 60 {
			server, _, c, err := n.from(from).ask(t, one)
			testenv.NoError(t, err)
			_ = c.Close()
			servers[server]++
		}
		if servers[podServer] < 10 || servers[otherServer] < 10 {
			t.Errorf("%s: got answers of %v, want at least 10 of each server", name, servers)
		}
	}
}

// withoutPort returns a snapshot without one of its service ports.
func withoutPort(s proxy.Snapshot, name proxy.ServicePortName) proxy.Snapshot {
	return proxy.NewSnapshot(s.Node(), slices.DeleteFunc(slices.Collect(s.All()), func(p *proxy.ServicePort) bool { return p.Name == name })...)
}
