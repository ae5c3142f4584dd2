package userspace_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// forget makes the node forget all flows, as it does with flows that are silent for long.
func (n network) forget(t *testing.T) {
	t.Helper()
	const flows = 1 // the table of flows, not that of expectations
	testenv.NoError(t, n.node.Netlink().ConntrackTableFlush(flows))
}

// names returns a Service for UDP at an external address, with the pod as its endpoint.
func names(at string) proxy.Snapshot {
	p := snapshots.Port("dns/UDP", "ext="+at, podServer)
	p.Name.Name = at
	return proxy.NewSnapshot(&proxy.Node{Name: "node", Addresses: snapshots.Addrs("10.244.2.1")}, p)
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

// An answer may arrive when the node has forgotten the flow, which then seems to begin at the
// frontend. The client's next datagram, which seems to be a reply, still reaches the endpoint,
// and no other host that has the frontend's address.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		for name, from := range map[string]func(network) *netns.NS{
			"client": func(n network) *netns.NS { return n.client }, "node": func(n network) *netns.NS { return n.node },
		} {
			for _, port := range []int{40_000, 20_000} { // the second one is of the backend's range
				for _, at := range []string{"10.96.0.1:53", "10.96.0.1:15000"} { // the same
					t.Run(fmt.Sprintf("%v/%s/%d/%s", capture, name, port, at), func(t *testing.T) {
						t.Parallel()
						n := newNetwork(t)
						testLateAnswers(t, n, &clientPort{ns: from(n), port: port, at: at}, capture)
					})
				}
			}
		}
	}
}

// clientPort is a source port in a namespace, and a Service that is used from there.
type clientPort struct {
	ns   *netns.NS
	port int
	at   string
}

func testLateAnswers(t *testing.T, n network, from *clientPort, capture userspace.Capture) {
	t.Helper()
	server, err := n.pod.ListenPacket(t.Context(), "udp", podServer)
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	b := n.start(t, userspace.Options{Capture: capture})
	apply(t, b, names(from.at))
	var client net.Conn
	if err := from.ns.Do(func() (err error) {
		client, err = (&net.Dialer{LocalAddr: &net.UDPAddr{Port: from.port}}).DialContext(t.Context(), "udp4", from.at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	for _, question := range []string{"one", "two", "three"} {
		if _, err := client.Write([]byte(question)); err != nil {
			t.Fatal(err)
		}
		peer := wantDatagram(t, server, question)
		n.forget(t)
		if _, err := server.WriteTo([]byte("yes"), peer); err != nil {
			t.Fatal(err)
		}
		if capture == userspace.Redirect {
			continue // Redirect cannot deliver an answer without its conntrack entry.
		}
		_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
		if size, err := client.Read(make([]byte, 100)); err != nil || size != 3 {
			t.Fatalf("the answer to %q: got %d bytes and error %v, want 3", question, size, err)
		}
	}
	if capture == userspace.Redirect {
		n.wantNoAnswers(t, client, server)
		return
	}
	// After the Service was removed, the client's next datagram is no reply either.
	wantOwnAnswer(t, n, b, client, from.at)
}

// wantNoAnswers checks that no late answer has left the node with the address of a listener. It
// waits for an answer with a conntrack entry, which is sent after them.
func (n network) wantNoAnswers(t *testing.T, client net.Conn, server net.PacketConn) {
	t.Helper()
	if _, err := client.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	if _, err := server.WriteTo([]byte("yes"), wantDatagram(t, server, "last")); err != nil {
		t.Fatal(err)
	}
	_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := client.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	flows, err := n.node.Netlink().ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	testenv.NoError(t, err)
	for _, f := range flows {
		if a, ok := netip.AddrFromSlice(f.Forward.SrcIP); ok && a.Unmap().As4()[0] == 0 {
			t.Errorf("got a flow from the listener's address %v to %v, want none", f.Forward.SrcIP, f.Forward.DstIP)
		}
	}
}

// wantOwnAnswer removes the Service, and checks that the client then reaches the host that has
// the address.
func wantOwnAnswer(t *testing.T, n network, b *userspace.Backend, client net.Conn, at string) {
	t.Helper()
	newOwner, err := n.pod.ListenPacket(t.Context(), "udp", at)
	testenv.NoError(t, err)
	defer newOwner.Close() //nolint:errcheck // the test is over
	apply(t, b, snapshot(two))
	if _, err := client.Write([]byte("heir")); err != nil {
		t.Fatal(err)
	}
	wantDatagram(t, newOwner, "heir")
}

// The same for connections: they continue if the node has forgotten them, and the endpoint sends
// first. With early demux off, as on some routers, the kernel routes before it looks up sockets.
func TestForgottenConnectionsContinue(t *testing.T) {
	t.Parallel()
	for _, demux := range []string{"1", "0"} {
		t.Run("early demux "+demux, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			testenv.NoError(t, n.node.Sysctl("net/ipv4/ip_early_demux", demux))
			l, err := n.pod.Listen(t.Context(), "tcp", podServer)
			testenv.NoError(t, err)
			t.Cleanup(func() { _ = l.Close() })
			apply(t, n.start(t, userspace.Options{}), snapshot(one))
			for name, ns := range map[string]*netns.NS{"client": n.client, "node": n.node} {
				t.Run(name, func(t *testing.T) { testForgottenConnection(t, n, ns, l) })
			}
		})
	}
}

func testForgottenConnection(t *testing.T, n network, from *netns.NS, l net.Listener) {
	t.Helper()
	client, err := from.Dial(t.Context(), "tcp", one)
	testenv.NoError(t, err)
	defer client.Close() //nolint:errcheck // the test is over
	server, err := l.Accept()
	testenv.NoError(t, err)
	defer server.Close() //nolint:errcheck // the test is over
	for range 3 {
		n.forget(t)
		wantPassed(t, server, client)
		wantPassed(t, client, server)
	}
}

// wantPassed sends a byte from one end, and checks that it arrives at the other.
func wantPassed(t *testing.T, from, to net.Conn) {
	t.Helper()
	if _, err := from.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = to.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := to.Read(make([]byte, 1)); err != nil {
		t.Fatalf("from %v to %v: got error %v, want none", from.LocalAddr(), to.LocalAddr(), err)
	}
}

// If a client's address and port is also a frontend, replies of pods and of programs of the node
// reach the client, and are not captured.
func TestRepliesPass(t *testing.T) {
	t.Parallel()
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		for server, where := range map[string]func(network) *netns.NS{
			podServer: func(n network) *netns.NS { return n.pod }, "10.244.1.1:8080": func(n network) *netns.NS { return n.node },
		} {
			t.Run(capture.String()+"/"+server, func(t *testing.T) {
				t.Parallel()
				n := newNetwork(t)
				testRepliesPass(t, n, network{client: n.client, node: n.node, pod: where(n)}, server, capture)
			})
		}
	}
}

func testRepliesPass(t *testing.T, n, servers network, server string, capture userspace.Capture) {
	t.Helper()
	servers.serve(t, server)
	servers.echo(t, server)
	const frontend = clientAddr + ":40000"
	b := n.start(t, userspace.Options{Capture: capture})
	apply(t, b, both(snapshot(frontend), names(frontend)))
	if got, err := n.greeting(t, server, 40_000); err != nil || got == "" {
		t.Errorf("a connection from a frontend: got %q and error %v, want an answer of %s", got, err, server)
	}
	n.wantEcho(t, frontend, server)
	if s := b.Stats(); s.Accepted != 0 || s.Sessions != 0 {
		t.Errorf("got %+v, want no accepted connection and no session", s)
	}
}

// An endpoint may answer after its session has ended. The answer begins no session, even if it
// is led back to the backend, or its destination is now a frontend.
func TestAnswersAfterTheSession(t *testing.T) {
	t.Parallel()
	const at = "10.96.0.1:53"
	for name, c := range map[string]struct {
		where    func(network) *netns.NS
		server   string
		frontend bool // the client's address, as the endpoint sees it, becomes a frontend
	}{
		"on the node":   {func(n network) *netns.NS { return n.node }, "10.244.2.1:8080", false},
		"to a frontend": {func(n network) *netns.NS { return n.pod }, podServer, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			b := n.start(t, userspace.Options{})
			there := withEndpoint(names(at), c.server)
			apply(t, b, there)
			endpoint, err := c.where(n).ListenPacket(t.Context(), "udp", c.server)
			testenv.NoError(t, err)
			t.Cleanup(func() { _ = endpoint.Close() })
			first := wantAnswerOf(t, n.client, at, endpoint)
			apply(t, b, withEndpoint(names(at), "10.244.2.10:9")) // which ends the session
			if c.frontend {
				there = both(there, withEndpoint(names(first.String()), c.server))
			}
			apply(t, b, there)
			if _, err := endpoint.WriteTo([]byte("late"), first); err != nil {
				t.Fatal(err)
			}
			// The next datagrams of the node and the client use the same listeners, after the
			// late answer.
			wantAnswerOf(t, n.node, at, endpoint)
			wantAnswerOf(t, n.client, at, endpoint)
			// The first session may take a moment to end.
			eventually(t, "nothing is denied and there are two sessions, none of the late answer", func() bool {
				s := b.Stats()
				return s.Denied == 0 && s.Sessions == 2
			})
		})
	}
}

// both returns the service ports of two snapshots.
func both(a, b proxy.Snapshot) proxy.Snapshot {
	return proxy.NewSnapshot(a.Node(), append(slices.Collect(a.All()), slices.Collect(b.All())...)...)
}

// wantAnswerOf sends a datagram, and checks that an endpoint answers it. It returns the client's
// address that the endpoint has seen.
func wantAnswerOf(t *testing.T, from *netns.NS, at string, endpoint net.PacketConn) net.Addr {
	t.Helper()
	client, err := from.Dial(t.Context(), "udp", at)
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	if _, err := client.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	peer := wantDatagram(t, endpoint, "?")
	if _, err := endpoint.WriteTo([]byte("yes"), peer); err != nil {
		t.Fatal(err)
	}
	_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
	if size, err := client.Read(make([]byte, 100)); err != nil || size != 3 {
		t.Fatalf("client %v, seen as %v: got %d bytes and error %v, want the answer", client.LocalAddr(), peer, size, err)
	}
	return peer
}
