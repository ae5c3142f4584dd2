package userspace_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Foreign bits of marks lead no packets to the backend, and the backend keeps them. Its own bit is
// only on packets that it captures, or that belong to connections that it makes.
func TestForeignMarksAreLeftAlone(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	const plain = "10.244.1.1:9999"
	n.Serve("node", "node", 8081)
	n.Serve("node", "node", 9999)
	n.nft(t, `table ip foreign {
		chain coming { type filter hook prerouting priority -150; meta mark set meta mark | 0x1; }
		chain own { type filter hook output priority -150; meta mark set meta mark | 0x1; ct state new ct mark set ct mark | 0x2; }
		chain wire { type filter hook prerouting priority -130; tcp dport 9999 meta mark & 0x40 != 0 drop; }
	}`)
	apply(t, n.start(t, userspace.Options{}), services(web(one), web(two, nodeServer)))
	for to, want := range map[string]string{one: podServer, two: nodeServer, podServer: podServer, plain: plain} {
		n.wantServer(t, to, want)
		n.from("node").wantServer(t, to, want)
	}
	flows, err := n.node().Netlink().ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	testenv.NoError(t, err)
	seen := 0
	for _, f := range flows {
		if f.Forward.DstPort == 8081 {
			seen++
		}
		isOwn := f.Forward.SrcPort >= 10_240 && f.Forward.SrcPort < 30_240 // the kernel gives clients later ones
		if isOwn != (f.Mark&0x40 != 0) {
			t.Errorf("mark of the flow from port %d to %v:%d: got %#x, want 0x40 in it: %t", f.Forward.SrcPort, f.Forward.DstIP, f.Forward.DstPort, f.Mark, isOwn)
		}
	}
	testenv.Same(t, 2, seen, "connections to the endpoint on the node")
}

// Ports of clients and frontends may be in the range of the backend's source ports.
func TestClientsMayUseAnyPort(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		// The kernel gives no listener or connection of the backend a port of the clients.
		testenv.NoError(t, n.node().Sysctl("net/ipv4/ip_local_reserved_ports", "10240,20000,30239,40000"))
		n.Serve("node", "node", 8081)
		s := services()
		for _, port := range []int{80, 15_000} {
			first, second := fmt.Sprintf("10.96.0.1:%d", port), fmt.Sprintf("10.96.0.2:%d", port)
			s = and(s, web(first), dns(first), web(second, nodeServer))
		}
		b := n.start(t, userspace.Options{Capture: c})
		b.ReachFrom(25_000) // so that the backend uses none of the clients' ports
		apply(t, b, s)
		for _, from := range []network{n, n.from("node")} {
			for _, own := range []string{"0.0.0.0:10240", "0.0.0.0:20000", "0.0.0.0:30239", "0.0.0.0:40000"} {
				for _, port := range []string{":80", ":15000"} {
					from.bound(own).wantFlow(t, "tcp", "10.96.0.1"+port, podServer)
					from.bound(own).wantFlow(t, "tcp", "10.96.0.2"+port, nodeServer)
					for range 2 { // The flow of the second one has an answer.
						_ = from.bound(own).wantFlow(t, "udp", "10.96.0.1"+port, podServer).Close()
					}
				}
			}
		}
	})
}

// The backend can use the first and the last port of its range.
func TestFirstAndLastSourcePort(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.Serve("node", "node", 8081)
	b := n.start(t, userspace.Options{})
	apply(t, b, services(web(one), web(two, nodeServer)))
	for _, port := range []uint16{10_240, 30_239} {
		for to, want := range map[string]string{one: podServer, two: nodeServer} {
			b.ReachFrom(port)
			if a, _ := n.wantServer(t, to, want); a.Client.String() != fmt.Sprintf("%s:%d", clientAddr, port) {
				t.Errorf("client that %s sees: got %v, want %s and port %d", want, a.Client, clientAddr, port)
			}
		}
	}
}

// borrower is a client beside whose own flows to an endpoint the backend reaches the same endpoint
// from the client's address.
type borrower struct {
	network

	backend           *userspace.Backend
	protocol, addr    string
	service, endpoint string
	masqueraded       bool // another program translates what leaves the client's network
}

// A client may have a flow of its own to an endpoint, from the same port from which the backend
// reaches that endpoint for it. Neither disturbs the other, whichever begins first.
func TestBorrowedPortsMayBeInUse(t *testing.T) {
	t.Parallel()
	for name, world := range map[string]func(*testing.T) network{
		"routed": newNetwork,
		"masqueraded": func(t *testing.T) network {
			t.Helper()
			n := newNetwork(t)
			n.nft(t, `table ip foreign { chain post { type nat hook postrouting priority 100; ip saddr `+clientAddr+` masquerade; }; }
				table ip6 foreign { chain post { type nat hook postrouting priority 100; ip6 saddr `+clientAddr6+` masquerade; }; }`)
			return n
		},
		"bridged":                func(t *testing.T) network { t.Helper(); return newBridged(t, false) },
		"bridged with netfilter": func(t *testing.T) network { t.Helper(); return newBridged(t, true) },
	} {
		// The places of most chains move by the priority.
		for protocol, priority := range map[string]int32{"tcp": 50, "udp": -50} {
			for _, w := range []borrower{
				{addr: clientAddr, service: one, endpoint: podServer}, {addr: clientAddr6, service: service6, endpoint: podServer6},
			} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, protocol, w.endpoint), func(t *testing.T) {
					w.network, w.protocol, w.masqueraded = world(t), protocol, name == "masqueraded"
					w.backend = w.start(t, userspace.Options{Identity: backends.Identity{Priority: priority}})
					apply(t, w.backend, bothProtocols())
					testBorrowedPorts(t, &w)
				})
			}
		}
	}
}

func testBorrowedPorts(t *testing.T, w *borrower) {
	t.Helper()
	const taken = 20_000
	own := w.open(t, taken, w.endpoint)
	from := netip.MustParseAddr(w.addr)
	if w.masqueraded {
		from = own.seen.Addr()
	}
	w.backend.ReachFrom(taken)
	first := w.open(t, 0, w.service)
	if first.seen.Port() == taken || first.seen.Addr() != from {
		t.Errorf("beside the client's own flow from port %d: the endpoint sees %v, want another port of %v", taken, first.seen, from)
	}
	second := w.open(t, 0, w.service)
	later := w.open(t, second.seen.Port(), w.endpoint)
	if later.seen.Port() == second.seen.Port() || later.seen.Addr() != from {
		t.Errorf("beside the backend's flow from port %d: the endpoint sees %v, want another port of %v", second.seen.Port(), later.seen, from)
	}
	for range 3 {
		for _, f := range []*borrowed{own, first, second, later} {
			f.wantAnswer(t)
		}
	}
	// What the node keeps of closed connections disturbs no flow either.
	_, _ = first.Conn.Close(), second.Conn.Close()
	third := w.open(t, 0, w.service)
	_ = third.Conn.Close()
	for _, f := range []*borrowed{own, later, w.open(t, third.seen.Port(), w.endpoint)} {
		f.wantAnswer(t)
	}
}

// borrowed is a flow of a client, and the client's address and port that the endpoint sees.
type borrowed struct {
	*lab.Conn

	seen netip.AddrPort
}

// open begins a flow from a port of the client, 0 for any, and waits for the first answer.
func (w *borrower) open(t *testing.T, port uint16, to string) *borrowed {
	t.Helper()
	from := netip.AddrPortFrom(netip.MustParseAddr(w.addr), port)
	c, err := w.dial(t, w.protocol, from, to)
	if err != nil {
		t.Fatalf("from %v to %s: %v", from, to, err)
	}
	f := &borrowed{Conn: c}
	f.wantAnswer(t)
	return f
}

// wantAnswer checks that a flow continues, seen as before, and that no packet of it was lost.
func (f *borrowed) wantAnswer(t *testing.T) {
	t.Helper()
	a, err := f.Ask(t.Context())
	if err == nil && f.RemoteAddr().Network() == "tcp" {
		err = checkRetransmits(f.Conn.Conn)
	}
	if !f.seen.IsValid() {
		f.seen = a.Client
	}
	if err != nil || a.Client != f.seen {
		t.Errorf("%v to %v: got client %v and error %v, want %v", f.LocalAddr(), f.RemoteAddr(), a.Client, err, f.seen)
	}
}

// Another program may put all packets of the node into a zone of its own, before the backend can. Then the ports of
// clients are not protected, and everything else works.
func TestForeignZone(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.nft(t, `table ip foreign {
		chain coming { type filter hook prerouting priority -300; ct zone set 1; }
		chain own { type filter hook output priority -300; ct zone set 1; }
	}`)
	apply(t, n.start(t, userspace.Options{}), bothProtocols())
	for _, protocol := range []string{"tcp", "udp"} {
		w := &borrower{network: n, protocol: protocol, addr: clientAddr}
		for range 3 {
			w.open(t, 0, one).wantAnswer(t)
		}
	}
}
