package userspace_test

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// forget makes the node forget all flows, as it does with flows that are silent for long.
func (n network) forget(t *testing.T) {
	t.Helper()
	const flows = 1 // the table of flows, not that of expectations
	testenv.NoError(t, n.node().Netlink().ConntrackTableFlush(flows))
}

// listen opens a socket for datagrams at a host.
func (n network) listen(t *testing.T, host, at string) net.PacketConn {
	t.Helper()
	c, err := n.NS(host).ListenPacket(t.Context(), "udp", at)
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// echo answers datagrams to the pod with themselves.
func (n network) echo(t *testing.T, at string) {
	t.Helper()
	n.receive(t, at, func(c net.PacketConn, datagram []byte, from net.Addr) { _, _ = c.WriteTo(datagram, from) })
}

// receive calls a function for each datagram to the pod.
func (n network) receive(t *testing.T, at string, each func(c net.PacketConn, datagram []byte, from net.Addr)) {
	t.Helper()
	c := n.listen(t, "pod", at)
	var wg sync.WaitGroup
	wg.Go(func() {
		for buf := make([]byte, 64<<10); ; {
			size, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			each(c, buf[:size], from)
		}
	})
	t.Cleanup(func() {
		_ = c.Close()
		wg.Wait()
	})
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// answerTo sends an answer of an endpoint.
func answerTo(t *testing.T, endpoint net.PacketConn, to net.Addr, text string) {
	t.Helper()
	if _, err := endpoint.WriteTo([]byte(text), to); err != nil {
		t.Fatal(err)
	}
}

// wantDatagram reads one datagram, checks it, and returns the sender.
func wantDatagram(t *testing.T, c net.PacketConn, want string) net.Addr {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 100)
	size, from, err := c.ReadFrom(buf)
	if err != nil || string(buf[:size]) != want {
		t.Fatalf("got %q and error %v, want %q", buf[:size], err, want)
	}
	return from
}

// wantRead reads from a connection or a flow, and checks what it gets.
func wantRead(t *testing.T, c net.Conn, want string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 100)
	size, err := c.Read(buf)
	if err != nil || string(buf[:size]) != want {
		t.Fatalf("%v from %v: got %q and error %v, want %q", c.LocalAddr(), c.RemoteAddr(), buf[:size], err, want)
	}
}

// An answer may arrive when the node has forgotten the flow, which then seems to begin at the
// frontend. The client's next datagram, which seems to be a reply, still reaches the endpoint,
// and no other host that has the frontend's address.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		for _, host := range []string{"client", "node"} {
			for _, port := range []int{40_000, 20_000} { // the second one is of the backend's range
				for _, at := range []string{"10.96.0.1:53", "10.96.0.1:15000"} { // the same
					t.Run(fmt.Sprintf("%s/%d/%s", host, port, at), func(t *testing.T) {
						t.Parallel()
						n := newNetwork(t).from(host)
						testLateAnswers(t, n, fmt.Sprint("0.0.0.0:", port), at, c)
					})
				}
			}
		}
	})
}

func testLateAnswers(t *testing.T, n network, from, at string, capture userspace.Capture) {
	t.Helper()
	server := n.listen(t, "pod", podSocket)
	b := n.start(t, userspace.Options{Capture: capture})
	apply(t, b, services(dns(at, podSocket)))
	client, err := n.dial(t, "udp", netip.MustParseAddrPort(from), at)
	testenv.NoError(t, err)
	for _, question := range []string{"one", "two", "three"} {
		send(t, client, question)
		peer := wantDatagram(t, server, question)
		n.forget(t)
		answerTo(t, server, peer, "yes")
		if capture == userspace.TPROXY { // Redirect cannot deliver an answer without its conntrack entry.
			wantRead(t, client, "yes")
		}
	}
	if capture == userspace.Redirect {
		n.wantNoAnswers(t, client, server)
		return
	}
	// After the Service was removed, the client's next datagram is no reply either.
	heir := n.listen(t, "pod", at)
	apply(t, b, snapshot(two))
	send(t, client, "heir")
	wantDatagram(t, heir, "heir")
}

// wantNoAnswers checks that no late answer has left the node with the address of a listener. It
// waits for an answer with a conntrack entry, which is sent after them.
func (n network) wantNoAnswers(t *testing.T, client net.Conn, server net.PacketConn) {
	t.Helper()
	send(t, client, "last")
	answerTo(t, server, wantDatagram(t, server, "last"), "yes")
	wantRead(t, client, "yes")
	flows, err := n.node().Netlink().ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	testenv.NoError(t, err)
	for _, f := range flows {
		if a, ok := netip.AddrFromSlice(f.Forward.SrcIP); ok && a.Unmap().As4()[0] == 0 {
			t.Errorf("got a flow from the listener's address %v to %v, want none", f.Forward.SrcIP, f.Forward.DstIP)
		}
	}
}

// The same for connections: they continue if the node has forgotten them, and the endpoint sends
// first. With early demux off, as on some routers, the kernel routes before it looks up sockets.
func TestForgottenConnectionsContinue(t *testing.T) {
	t.Parallel()
	for _, demux := range []string{"1", "0"} {
		t.Run("early demux "+demux, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			testenv.NoError(t, n.node().Sysctl("net/ipv4/ip_early_demux", demux))
			l, err := n.NS("pod").Listen(t.Context(), "tcp", podSocket)
			testenv.NoError(t, err)
			testenv.CloseAtEnd(t, l)
			apply(t, n.start(t, userspace.Options{}), services(web(one, podSocket)))
			for _, from := range []string{"client", "node"} {
				client, err := n.from(from).dial(t, "tcp", netip.AddrPort{}, one)
				testenv.NoError(t, err)
				server, err := l.Accept()
				testenv.NoError(t, err)
				for range 3 {
					n.forget(t)
					send(t, server, "x")
					wantRead(t, client, "x")
					send(t, client, "y")
					wantRead(t, server, "y")
				}
				_ = server.Close()
			}
		})
	}
}

// If a client's address and port is also a frontend, replies of pods and of programs of the node
// reach the client, and are not captured.
func TestRepliesPass(t *testing.T) {
	t.Parallel()
	const frontend = clientAddr + ":40000"
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.Serve("node", "node", 8081)
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, services(web(frontend), dns(frontend)))
		for _, server := range []string{podServer, nodeServer} {
			n.bound(frontend).wantFlow(t, "tcp", server, server)
			_ = n.bound(frontend).wantFlow(t, "udp", server, server).Conn.Close()
		}
		if s := b.Abilities().CountConnections(); s.Accepted != 0 || s.Sessions != 0 {
			t.Errorf("got %+v, want no accepted connection and no session", s)
		}
	})
}

// An endpoint may answer after its session has ended. The answer begins no session, even if it
// is led back to the backend, or its destination is now a frontend.
func TestAnswersAfterTheSession(t *testing.T) {
	t.Parallel()
	const at = "10.96.0.1:53"
	for name, c := range map[string]struct {
		host, server string
		frontend     bool // the client's address, as the endpoint sees it, becomes a frontend
	}{
		"on the node":   {"node", "10.244.2.1:9000", false},
		"to a frontend": {"pod", podSocket, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			b := n.start(t, userspace.Options{Timeouts: userspace.Timeouts{Drain: time.Second}}) // looks for sessions to end often
			there := services(dns(at, c.server))
			apply(t, b, there)
			endpoint := n.listen(t, c.host, c.server)
			first := n.wantAnswerOf(t, at, endpoint)
			apply(t, b, services(dns(at, podAddr+":9")))
			eventually(t, "the session has ended", func() bool { return b.Abilities().CountConnections().Sessions == 0 })
			if c.frontend {
				there = and(there, dns(first.String(), c.server))
			}
			apply(t, b, there)
			answerTo(t, endpoint, first, "late")
			// The next datagrams of the node and the client use the same listeners, after the
			// late answer.
			n.from("node").wantAnswerOf(t, at, endpoint)
			n.wantAnswerOf(t, at, endpoint)
			// The first session may take a moment to end.
			eventually(t, "nothing is denied and there are two sessions, none of the late answer", func() bool {
				s := b.Abilities().CountConnections()
				return s.Denied == 0 && s.Sessions == 2
			})
		})
	}
}

// wantAnswerOf sends a datagram, and checks that an endpoint answers it. It returns the client's
// address that the endpoint has seen.
func (n network) wantAnswerOf(t *testing.T, at string, endpoint net.PacketConn) net.Addr {
	t.Helper()
	client := n.flow(t, at)
	send(t, client, "?")
	peer := wantDatagram(t, endpoint, "?")
	answerTo(t, endpoint, peer, "yes")
	wantRead(t, client, "yes")
	return peer
}
