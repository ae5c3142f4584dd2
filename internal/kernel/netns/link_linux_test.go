package netns_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func link(t *testing.T, a *netns.NS, aName string, b *netns.NS, bName string) {
	t.Helper()
	testenv.NoError(t, netns.Link(netns.End{NS: a, Name: aName}, netns.End{NS: b, Name: bName}))
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		testenv.NoError(t, err)
	}
}

// router connects two hosts by a third namespace, with addresses, routes, neighbours and
// next hops of all kinds, and returns the hosts. All addresses of 198.51.100.0/24 and
// 2001:db8:2::/64 are local to host b.
func router(t *testing.T) (a, b *netns.NS) {
	t.Helper()
	a, b = newNS(t), newNS(t)
	middle := newNS(t)
	must(t, middle.Forward())
	for i, host := range []*netns.NS{a, b} {
		near := fmt.Sprintf("to-%d", i)
		link(t, middle, near, host, "eth0")
		hw, err := middle.HardwareAddr(near)
		must(t, err,
			middle.AddAddress(near, netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/28", 1+16*i))),
			middle.AddAddress(near, netip.MustParsePrefix(fmt.Sprintf("2001:db8:%d::1/64", 10+i))),
			host.AddAddress("eth0", netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/28", 2+16*i))),
			host.AddAddress("eth0", netip.MustParsePrefix(fmt.Sprintf("2001:db8:%d::2/64", 10+i))),
			host.AddRoute(netns.Route{
				To: netip.MustParsePrefix("0.0.0.0/0"), Link: "eth0",
				Via: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 1+16*i)),
			}),
			// The next hop is outside of the link's own range and has only a
			// neighbour entry.
			host.AddRoute(netns.Route{
				To: netip.MustParsePrefix("::/0"), Link: "eth0", Via: netip.MustParseAddr("fe80::1234"),
			}),
			host.AddNeighbor("eth0", netip.MustParseAddr("fe80::1234"), hw))
	}
	for _, r := range []struct{ to, via string }{
		{"198.51.100.0/24", "192.0.2.18"}, {"2001:db8:2::/64", "2001:db8:11::2"},
	} {
		to := netip.MustParsePrefix(r.to)
		must(t,
			middle.AddRoute(netns.Route{To: to, Link: "to-1", Via: netip.MustParseAddr(r.via)}),
			b.AddRoute(netns.Route{To: to, Link: "lo", Local: true}))
	}
	return a, b
}

// greet sends to each client the client's address.
func greet(t *testing.T, l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // The listener is closed.
		}
		if _, err := io.WriteString(conn, hostOf(t, conn.RemoteAddr())); err != nil {
			t.Error(err)
		}
		ends(t, conn)
	}
}

func hostOf(t *testing.T, a net.Addr) string {
	t.Helper()
	addr, err := netip.ParseAddrPort(a.String())
	if err != nil {
		t.Error(err)
	}
	return addr.Addr().Unmap().String()
}

func ends(t *testing.T, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestTrafficThroughRouter(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	a, b := router(t)
	listener, err := b.Listen(ctx, "tcp", "[::]:8080")
	must(t, err)
	go greet(t, listener)
	defer ends(t, listener)
	for to, want := range map[string]string{
		"192.0.2.18:8080":       "192.0.2.2",
		"198.51.100.77:8080":    "192.0.2.2",
		"[2001:db8:11::2]:8080": "2001:db8:10::2",
		"[2001:db8:2::7]:8080":  "2001:db8:10::2",
	} {
		conn, err := a.Dial(ctx, "tcp", to)
		if err != nil {
			t.Errorf("%s: %v", to, err)
			continue
		}
		seen, err := io.ReadAll(conn)
		ends(t, conn)
		if err != nil || string(seen) != want {
			t.Errorf("%s: address of the client: got %q, error %v, want %s", to, seen, err, want)
		}
	}
}

func TestSecondaryIsNoSource(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	a, b := newNS(t), newNS(t)
	link(t, a, "eth0", b, "eth0")
	must(t,
		a.AddAddress("eth0", netip.MustParsePrefix("fd00::1/64")),
		a.AddSecondary("eth0", netip.MustParsePrefix("fd00::2/64")),
		b.AddAddress("eth0", netip.MustParsePrefix("fd00::9/64")))
	packets, err := b.ListenPacket(ctx, "udp", "[fd00::9]:53")
	must(t, err)
	defer ends(t, packets)
	conn, err := a.Dial(ctx, "udp", "[fd00::9]:53")
	must(t, err)
	defer ends(t, conn)
	_, err = conn.Write([]byte("?"))
	must(t, err, packets.SetDeadline(time.Now().Add(5*time.Second)))
	_, from, err := packets.ReadFrom(make([]byte, 8))
	must(t, err)
	if got := hostOf(t, from); got != "fd00::1" {
		t.Errorf("source of the datagram: got %s, want the primary address fd00::1", got)
	}
	back, err := b.Dial(ctx, "udp", "[fd00::2]:53")
	must(t, err, back.Close())
}

// Two hosts on a bridge reach each other, and a port gets the hairpin mode that AddPort is
// called with.
func TestBridge(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	middle := newNS(t)
	must(t, middle.AddBridge("br0"), middle.AddAddress("br0", netip.MustParsePrefix("10.1.0.1/24")))
	for i, hairpin := range []bool{true, false} {
		host, port := newNS(t), fmt.Sprintf("port%d", i)
		link(t, middle, port, host, "eth0")
		must(t, middle.AddPort("br0", port, hairpin))
		l, err := middle.Netlink().LinkByName(port)
		must(t, err)
		got, err := middle.Netlink().LinkGetProtinfo(l)
		must(t, err)
		testenv.Same(t, hairpin, got.Hairpin, "hairpin mode of %s", port)
		must(t, host.AddAddress("eth0", netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(2 + i)}), 24)))
		listener, err := host.Listen(ctx, "tcp", ":8080")
		must(t, err)
		defer ends(t, listener)
		go greet(t, listener)
		for n := range i + 1 {
			from := []*netns.NS{middle, host}[n]
			conn, err := from.Dial(ctx, "tcp", "10.1.0.2:8080")
			must(t, err)
			seen, err := io.ReadAll(conn)
			must(t, err, conn.Close())
			if want := []string{"10.1.0.1", "10.1.0.3"}[n]; string(seen) != want {
				t.Errorf("address of the client, as the first host gets it: got %q, want %s", seen, want)
			}
		}
	}
}

// A VXLAN carries packets between two hosts.
func TestVXLAN(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	hosts := []*netns.NS{newNS(t), newNS(t)}
	link(t, hosts[0], "eth0", hosts[1], "eth0")
	outer := []string{"192.0.2.1", "192.0.2.2"}
	for i, n := range hosts {
		must(t,
			n.AddAddress("eth0", netip.MustParsePrefix(outer[i]+"/24")),
			n.AddVXLAN(netns.Tunnel{
				Name: "vx0", Over: "eth0", MTU: 1400,
				Local: netip.MustParseAddr(outer[i]), Remote: netip.MustParseAddr(outer[1-i]),
			}),
			n.AddAddress("vx0", netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(1 + i)}), 24)))
		l, err := n.Netlink().LinkByName("vx0")
		must(t, err)
		testenv.Same(t, 1400, l.Attrs().MTU, "MTU")
	}
	listener, err := hosts[1].Listen(ctx, "tcp", "10.1.0.2:8080")
	must(t, err)
	defer ends(t, listener)
	go greet(t, listener)
	conn, err := hosts[0].Dial(ctx, "tcp", "10.1.0.2:8080")
	must(t, err)
	seen, err := io.ReadAll(conn)
	must(t, err, conn.Close())
	if string(seen) != "10.1.0.1" {
		t.Errorf("address of the client, as the other end gets it: got %q, want 10.1.0.1", seen)
	}
}

// A rule selects another routing table for packets by their source, destination or mark.
func TestRules(t *testing.T) {
	t.Parallel()
	n := newNS(t)
	must(t, n.AddBridge("to-1"), n.AddBridge("to-2"))
	for i, c := range []struct {
		rule     netns.Rule
		from, to string
	}{
		{netns.Rule{To: netip.MustParsePrefix("192.0.2.0/24")}, "10.1.0.1", "192.0.2.7"},
		{netns.Rule{From: netip.MustParsePrefix("10.2.0.0/24")}, "10.2.0.1", "198.51.100.7"},
		{netns.Rule{Mark: 1, Mask: 1}, "10.3.0.1", "203.0.113.7"},
	} {
		to := netip.MustParsePrefix(c.to + "/32")
		c.rule.Priority, c.rule.Family, c.rule.Table = 100+i, unix.AF_INET, 77
		must(t,
			n.AddAddress("to-1", netip.MustParsePrefix(c.from+"/32")),
			n.AddRoute(netns.Route{To: to, Link: "to-1"}),
			n.AddRoute(netns.Route{To: to, Link: "to-2", Table: 77}))
		options := &netlink.RouteGetOptions{SrcAddr: net.ParseIP(c.from), Mark: c.rule.Mark}
		for i, want := range []string{"to-1", "to-2"} {
			if i == 1 {
				must(t, n.AddRule(c.rule))
			}
			routes, err := n.Netlink().RouteGetWithOptions(net.ParseIP(c.to), options)
			must(t, err)
			l, err := n.Netlink().LinkByIndex(routes[0].LinkIndex)
			must(t, err)
			if l.Attrs().Name != want {
				t.Errorf("with %d rules like %+v: output interface: got %s, want %s", i, c.rule, l.Attrs().Name, want)
			}
		}
		if err := n.AddRule(c.rule); err == nil {
			t.Errorf("AddRule(%+v), a second time: got no error, want one", c.rule)
		}
	}
}

func TestLinkErrors(t *testing.T) {
	t.Parallel()
	a, b := newNS(t), newNS(t)
	link(t, a, "eth0", b, "eth0")
	address := netip.MustParsePrefix("10.1.0.1/24")
	route := netns.Route{To: netip.MustParsePrefix("10.2.0.0/16"), Link: "eth0"}
	neighbour, hw := netip.MustParseAddr("10.1.0.2"), net.HardwareAddr{2, 0, 0, 0, 0, 1}
	must(t, a.AddAddress("eth0", address), a.AddRoute(route), a.AddNeighbor("eth0", neighbour, hw))
	must(t, a.AddBridge("br0"))
	_, noHardware := a.HardwareAddr("eth9")
	noInterface := netns.Route{To: route.To, Link: "eth9"}
	for what, err := range map[string]error{
		"a name that exists":          netns.Link(netns.End{NS: a, Name: "eth0"}, netns.End{NS: b, Name: "eth1"}),
		"a name that is too long":     netns.Link(netns.End{NS: a, Name: "a-name-of-17-char"}, netns.End{NS: b, Name: "eth1"}),
		"a bridge that exists":        a.AddBridge("br0"),
		"a port of no bridge":         a.AddPort("br9", "eth0", false),
		"a port that is no interface": a.AddPort("br0", "eth9", false),
		"a port of no bridge's kind":  a.AddPort("eth0", "br0", false),
		"a tunnel over no interface":  a.AddVXLAN(netns.Tunnel{Name: "vx0", Over: "eth9", Local: neighbour, Remote: neighbour}),
		"a tunnel that exists":        a.AddVXLAN(netns.Tunnel{Name: "br0", Over: "eth0", Local: neighbour, Remote: neighbour}),
		"hardware of no interface":    noHardware,
		"an address on no interface":  a.AddAddress("eth9", address),
		"a secondary on no interface": a.AddSecondary("eth9", address),
		"a route over no interface":   a.AddRoute(noInterface),
		"a neighbour on no interface": a.AddNeighbor("eth9", neighbour, hw),
		"a route that exists":         a.AddRoute(route),
		"an address that exists":      a.AddAddress("eth0", address),
		"a neighbour that exists":     a.AddNeighbor("eth0", neighbour, hw),
	} {
		if err == nil {
			t.Errorf("%s: got no error, want one", what)
		}
	}
}

const udpPort = 5353

// ask opens a socket of a client, and sends requests without waiting for replies.
func ask(t *testing.T, ns *netns.NS, address string, questions int) net.Conn {
	t.Helper()
	conn, err := ns.Dial(t.Context(), "udp", netip.AddrPortFrom(netip.MustParseAddr(address), udpPort).String())
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testenv.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	for range questions {
		if _, err := conn.Write([]byte("who?")); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// A server answers from the address that a request was sent to, and loses no request that
// was sent while it did not read.
func TestUDPServer(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	questions := 2000
	if os.Getenv("VIPKIT_USER_NAMESPACE") != "" {
		questions = 100 // There, the buffer is limited by net.core.rmem_max.
	}
	server, err := ns.ListenUDP(t.Context(), udpPort)
	testenv.NoError(t, err)
	conns := []net.Conn{ask(t, ns, "127.0.0.2", questions-1), ask(t, ns, "::1", 1)}
	asked, done := make(chan struct{}, questions), make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(func(question []byte, client, own netip.AddrPort) []byte {
			asked <- struct{}{}
			return fmt.Appendf(nil, "%s %v %v", question, client, own)
		})
	}()
	for i := range questions {
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Fatalf("requests that the server received: got %d, want %d", i, questions)
		}
	}
	for _, conn := range conns {
		buf := make([]byte, netns.MaxDatagram)
		want := fmt.Sprintf("who? %v %v", conn.LocalAddr(), conn.RemoteAddr())
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != want {
			t.Errorf("reply: got %q, error %v, want %q", buf[:n], err, want)
		}
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	<-done
}
