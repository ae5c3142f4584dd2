package engine

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func udpSocket(t testing.TB) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	testenv.NoError(t, err)
	t.Cleanup(func() { shut(c) })
	return c
}

// packets serves datagrams at a loopback address until the test ends.
func (w *fixture) packets(t testing.TB) netip.AddrPort {
	t.Helper()
	return w.packetsFrom(t, ByAddress)
}

func (w *fixture) packetsFrom(t testing.TB, origin Origin) netip.AddrPort {
	t.Helper()
	c := udpSocket(t)
	at := addrOf(c.LocalAddr())
	w.ServePackets(newPacketListener(c, origin))
	return at
}

// echo answers each datagram with itself, after the address of the server.
func echo(t testing.TB) netip.AddrPort {
	t.Helper()
	c := udpSocket(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, maxDatagram)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			answer := append([]byte(c.LocalAddr().String()+" "), buf[:n]...)
			if len(answer) > 65507 {
				answer = buf[:n]
			}
			_, _ = c.WriteToUDPAddrPort(answer, from)
		}
	})
	t.Cleanup(func() {
		shut(c)
		wg.Wait()
	})
	return addrOf(c.LocalAddr())
}

// udpClient is a client that sends datagrams from one port.
type udpClient struct{ *net.UDPConn }

func newUDPClient(t testing.TB, to netip.AddrPort) udpClient {
	return udpClientFrom(t, "127.0.0.1", to)
}

// udpClientFrom returns a client with an address of the loopback network.
func udpClientFrom(t testing.TB, from string, to netip.AddrPort) udpClient {
	t.Helper()
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)}, net.UDPAddrFromAddrPort(to))
	testenv.NoError(t, err)
	t.Cleanup(func() { shut(c) })
	return udpClient{c}
}

// ask sends a datagram, repeatedly since some may get lost, and returns the answer.
func (a udpClient) ask(t testing.TB, datagram []byte) []byte {
	t.Helper()
	buf := make([]byte, maxDatagram)
	for range 20 {
		if _, err := a.Write(datagram); err != nil {
			t.Fatal(err)
		}
		// With a shorter deadline, a late answer would be mistaken for the next one.
		_ = a.SetReadDeadline(time.Now().Add(3 * time.Second))
		if n, err := a.Read(buf); err == nil {
			return buf[:n]
		}
	}
	t.Fatalf("no answer to %.20q", datagram)
	return nil
}

func (a udpClient) serverName(t testing.TB) string {
	t.Helper()
	name, _, _ := bytes.Cut(a.ask(t, []byte("?")), []byte(" "))
	return string(name)
}

func TestDatagrams(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolUDP)
	at := w.packets(t)
	one, two := echo(t), echo(t)
	w.serveAt(at, one, two)
	seen := map[string]bool{}
	for range 40 {
		a := newUDPClient(t, at)
		name := a.serverName(t)
		for range 3 {
			if again := a.serverName(t); again != name {
				t.Fatalf("one client got %s and %s", name, again)
			}
		}
		seen[name] = true
	}
	if !seen[one.String()] || !seen[two.String()] || len(seen) != 2 {
		t.Errorf("40 clients got %v, want both %v and %v", seen, one, two)
	}
	if n := w.CountConnections().Sessions; n != 40 {
		t.Errorf("got %d sessions, want 40", n)
	}
}

// A draining endpoint keeps its sessions, and gets no new ones.
func TestSessionsOfDrainingEndpointsStay(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolUDP)
	at := w.packets(t)
	one, two := echo(t), echo(t)
	w.serveAt(at, one)
	a := newUDPClient(t, at)
	a.serverName(t)
	p := *w.port
	p.Cluster, p.Draining = snapshots.At(two), snapshots.At(one)
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, &p))
	if got := a.serverName(t); got != one.String() {
		t.Errorf("while it drains: got %s, want %v", got, one)
	}
	if got := newUDPClient(t, at).serverName(t); got != two.String() {
		t.Errorf("a new session: got %s, want %v", got, two)
	}
	last := p
	last.Draining = nil
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, &last))
	if got := a.serverName(t); got != two.String() {
		t.Errorf("after it was removed: got %s, want %v", got, two)
	}
}

// A session ends if the route of its client excludes its endpoint, although the Service still has the
// endpoint: the policy has become Local, or the endpoint has left one of two pools. With the Local policy only
// draining endpoints of this node keep their sessions.
func TestSessionsFollowTheirRoute(t *testing.T) {
	t.Parallel()
	local := proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
	one, two := echo(t), echo(t)
	for name, tc := range map[string]struct {
		before, after func(*proxy.ServicePort)
		stays         bool
	}{
		"policy becomes Local": {after: func(p *proxy.ServicePort) {
			p.Local, p.Frontends = snapshots.At(two), slices.Clone(p.Frontends)
			p.Frontends[0].FromOutside = local
		}},
		"endpoint leaves a pool": {
			before: func(p *proxy.ServicePort) { p.Local, p.Frontends[0].FromOutside = snapshots.At(one), local },
			after:  func(p *proxy.ServicePort) { p.Local = snapshots.At(two) },
		},
		"endpoint of another node drains": {
			before: func(p *proxy.ServicePort) { p.Local, p.Frontends[0].FromOutside = snapshots.At(one), local },
			after:  func(p *proxy.ServicePort) { p.Cluster, p.Local, p.Draining = nil, snapshots.At(two), snapshots.At(one) },
		},
		"endpoint of this node drains": {
			before: func(p *proxy.ServicePort) { p.Local, p.Frontends[0].FromOutside = snapshots.At(one), local },
			after: func(p *proxy.ServicePort) {
				p.Cluster, p.Local, p.Draining = nil, snapshots.At(two), snapshots.At(one)
				p.Draining[0].Local = true
			},
			stays: true,
		},
		"another pool loses an endpoint": {
			before: func(p *proxy.ServicePort) { p.Local = snapshots.At(two) },
			after:  func(p *proxy.ServicePort) { p.Local = nil },
			stays:  true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, Config{}, v1.ProtocolUDP)
			at := w.packetsFrom(t, Outside)
			p := forwarding("dns", at, one)
			if tc.before != nil {
				tc.before(p)
			}
			w.Apply(proxy.NewSnapshot(&proxy.Node{}, p))
			a := udpClientFrom(t, "127.0.0.1", at)
			if got := a.serverName(t); got != one.String() {
				t.Fatalf("got %s, want %v", got, one)
			}
			next := *p
			tc.after(&next)
			w.Apply(proxy.NewSnapshot(&proxy.Node{}, &next))
			want := two
			if tc.stays {
				want = one
			}
			if got := a.serverName(t); got != want.String() {
				t.Errorf("after the change: got %s, want %v", got, want)
			}
		})
	}
}

// forwarding returns a service port that leads one address to one endpoint.
func forwarding(name string, at, to netip.AddrPort) *proxy.ServicePort {
	return snapshots.Port(name+"/UDP", at.String(), to.String())
}

// A session ends when its frontend belongs to another Service, or no longer allows the client,
// even if the client never stops sending.
func TestSessionsFollowTheirFrontend(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolUDP)
	at := w.packets(t)
	one, two := echo(t), echo(t)
	first, second := forwarding("first", at, one), forwarding("second", at, two)
	idle := forwarding("first", netip.MustParseAddrPort("127.0.0.9:9"), one)
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, first))
	a := newUDPClient(t, at)
	if got := a.serverName(t); got != one.String() {
		t.Fatalf("got %s, want %v", got, one)
	}
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, idle, second))
	if got := a.serverName(t); got != two.String() {
		t.Errorf("after another Service got the address: got %s, want %v", got, two)
	}
	closed := *second
	closed.Frontends = slices.Clone(second.Frontends)
	closed.Frontends[0].Restricted = true
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, idle, &closed))
	denied := w.CountConnections().Denied
	if _, err := a.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client is denied", func() bool { return w.CountConnections().Denied > denied })
	eventually(t, "the session has ended, since the frontend allows no client", func() bool { return w.CountConnections().Sessions == 0 })
}

// newPacketListener returns a listener for the datagrams that are sent to a socket.
func newPacketListener(conn *net.UDPConn, origin Origin) PacketListener {
	return socketListener{conn, Flow{Protocol: v1.ProtocolUDP, Frontend: addrOf(conn.LocalAddr()), Origin: origin}}
}

type socketListener struct {
	*net.UDPConn

	flow Flow // of each datagram, without the client
}

// Receive implements [PacketListener].
func (s socketListener) Receive(buf []byte) (int, Flow, error) {
	n, client, err := s.ReadFromUDPAddrPort(buf)
	f := s.flow
	f.Client = ipaddr.Unmap(client)
	return n, f, err
}

// Reply implements [Replier].
func (s socketListener) Reply(f Flow, datagram []byte) error {
	_, err := s.WriteToUDPAddrPort(datagram, f.Client)
	return err
}
