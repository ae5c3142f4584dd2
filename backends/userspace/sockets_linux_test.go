package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Which addresses of Services would lead what is sent there back here follows the
// snapshots: frontends do, and node ports at the addresses of the node.
func TestCapturedAddresses(t *testing.T) {
	addr := netip.MustParseAddrPort
	port := func(protocol v1.Protocol, at ...string) *proxy.ServicePort {
		p := &proxy.ServicePort{Name: proxy.ServicePortName{Port: at[0], Protocol: protocol}}
		for _, a := range at {
			p.Frontends = append(p.Frontends, proxy.Frontend{Addr: addr(a)})
		}
		return p
	}
	node := func(addrs ...string) *proxy.Node {
		n := &proxy.Node{}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
		}
		return n
	}
	c := captured{isLocal: func(netip.Addr) bool { return false }}
	var last proxy.Snapshot
	for _, step := range []struct {
		next proxy.Snapshot
		want []string // of TCP
	}{
		{proxy.NewSnapshot(node("192.0.2.1"), port(v1.ProtocolTCP, "10.96.0.1:80", "0.0.0.0:30000"), port(v1.ProtocolUDP, "10.96.0.2:80")), []string{"10.96.0.1:80", "192.0.2.1:30000"}},
		{proxy.NewSnapshot(node("192.0.2.2", "2001:db8::1"), port(v1.ProtocolTCP, "10.96.0.2:80", "[::]:30000", "0.0.0.0:30001")), []string{"10.96.0.2:80", "192.0.2.2:30001", "[2001:db8::1]:30000"}},
		{proxy.NewSnapshot(node("192.0.2.1", "192.0.2.2")), nil},
	} {
		c.follow(last, step.next)
		last = step.next
		var got []string
		for _, at := range []string{
			"10.96.0.1:80", "10.96.0.2:80", "192.0.2.1:30000", "192.0.2.1:30001", "192.0.2.2:30000", "192.0.2.2:30001", "[2001:db8::1]:30000", "[2001:db8::1]:30001",
		} {
			if c.has(v1.ProtocolTCP, addr(at)) {
				got = append(got, at)
			}
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("what leads back (-want +got):\n%s", diff)
		}
	}
	if len(c.count) != 0 {
		t.Errorf("with no Services, %v is remembered", c.count)
	}
}

// The socket for answers hears nothing of all the datagrams that come to the host, and
// once it is closed, nothing is done with its descriptor, which may be another's.
func TestRepliersAreDeaf(t *testing.T) {
	ns := netnstest.NewNS(t)
	s := socketsIn(t, ns)
	r, err := s.replier(nfnetlink.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	at := namer(t, ns, "127.0.0.1:8081")
	c, err := ns.Dial(t.Context(), "udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // the test is over
	asks(t, c, at)
	if n, _, err := unix.Recvfrom(r.fd, make([]byte, 100), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("got %d bytes and error %v, want it to have heard nothing", n, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Reply(engine.Flow{Client: at, Frontend: at}, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("an answer after the end: got error %v, want %v", err, net.ErrClosed)
	}
	if err := r.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: got error %v, want %v", err, net.ErrClosed)
	}
	k, err := s.tracked()
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := k.frontend(at, at); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a question after the end: got error %v, want %v", err, net.ErrClosed)
	}
	if err := k.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: got error %v, want %v", err, net.ErrClosed)
	}
}

// Who is said to be the node has its ports, whatever address of the node it is; a
// client has his own.
func TestPortsOfTheNodeAreOne(t *testing.T) {
	ns := netnstest.NewNS(t)
	s := socketsIn(t, ns)
	s.packetPorts = engine.NewPorts(firstSourcePort, 1, 0)
	to, here, client := namer(t, ns, "127.0.0.1:8081"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	for _, d := range []struct {
		dial engine.Dial
		want error
	}{
		{engine.Dial{Protocol: v1.ProtocolUDP, To: to, From: here, FromNode: true}, nil},
		{engine.Dial{Protocol: v1.ProtocolUDP, To: to}, engine.ErrNoPort},
		{engine.Dial{Protocol: v1.ProtocolUDP, To: to, From: client}, nil},
		{engine.Dial{Protocol: v1.ProtocolUDP, To: to, From: client}, engine.ErrNoPort},
	} {
		c, err := s.dial(t.Context(), d.dial)
		if !errors.Is(err, d.want) {
			t.Errorf("%+v: got error %v, want %v", d.dial, err, d.want)
		}
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
	}
}

// someDialer only says that it was called.
type someDialer struct{ called []string }

func (d *someDialer) dial(_ context.Context, to engine.Dial) (net.Conn, error) {
	d.called = append(d.called, "dial from "+to.From.String())
	return nil, errors.ErrUnsupported
}

func (d *someDialer) begin(to engine.Dial) (int, error) {
	d.called = append(d.called, "begin from "+to.From.String())
	return -1, errors.ErrUnsupported
}

// Whatever the options say gets to the engine.
func TestOptionsReachTheEngine(t *testing.T) {
	o := Options{
		Timeouts: Timeouts{
			Dial: []time.Duration{1}, Suspect: 2, Idle: 3, HalfClosed: 4, Drain: 5, Session: 6, Wake: 7,
		},
		Connections: 8, Sessions: 9, AffinityClients: 10, AffinityTotal: 11,
	}
	want := engine.Config{
		Timeouts: engine.Timeouts{
			Dial: []time.Duration{1}, Suspect: 2, Idle: 3, HalfClosed: 4, Drain: 5, Session: 6, Wake: 7,
		},
		Connections: 8, Sessions: 9, AffinityClients: 10, AffinityTotal: 11,
	}
	if diff := cmp.Diff(want, o.engineConfig(&someDialer{}), cmpopts.IgnoreFields(engine.Config{}, "Hooks")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A user's hooks are called with what the engine knows; his own way to dial is the only
// one. Only TPROXY lets endpoints see the client.
func TestHooksReachTheEngine(t *testing.T) {
	client := netip.MustParseAddr("192.0.2.1")
	d := engine.Dial{Protocol: v1.ProtocolTCP, From: client, To: netip.MustParseAddrPort("10.0.0.1:80")}
	flow := engine.Flow{Protocol: v1.ProtocolTCP, Client: netip.AddrPortFrom(client, 1), Frontend: d.To}
	for capture, sees := range map[Capture]string{TPROXY: client.String(), Redirect: netip.Addr{}.String(), LocalRoutes: netip.Addr{}.String()} {
		own := &someDialer{}
		o := Options{Capture: capture}
		c := o.engineConfig(own)
		_, _ = c.Hooks.Dial(t.Context(), d)
		_, _ = c.Hooks.Begin(d)
		if want := []string{"dial from " + sees, "begin from " + sees}; !slices.Equal(own.called, want) {
			t.Errorf("%v: got %q, want %q", capture, own.called, want)
		}
		var called []string
		o.Hooks = Hooks{
			Dial: func(_ context.Context, protocol v1.Protocol, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
				called = append(called, string(protocol)+" from "+from.String()+" to "+to.String())
				return nil, errors.ErrUnsupported
			},
			Pick: func(f Flow, among []*endpoints.Endpoint) int {
				called = append(called, f.Client.String()+" to "+f.Frontend.String())
				return len(among) - 1
			},
			FirstConnection: func(f Flow, name proxy.ServicePortName) {
				called = append(called, f.Client.String()+" first of "+name.Name)
			},
			ProxyProtocol: func(proxy.ServicePortName) int { return 2 },
		}
		c = o.engineConfig(own)
		_, _ = c.Hooks.Dial(t.Context(), d)
		if got := c.Hooks.Pick(flow, make([]*endpoints.Endpoint, 3)); got != 2 {
			t.Errorf("%v: got endpoint %d, want the one that was picked, 2", capture, got)
		}
		name := proxy.ServicePortName{}
		name.Name = "web"
		c.Hooks.FirstConnection(flow, name)
		want := []string{"TCP from " + sees + " to 10.0.0.1:80", "192.0.2.1:1 to 10.0.0.1:80", "192.0.2.1:1 first of web"}
		if diff := cmp.Diff(want, called); diff != "" {
			t.Errorf("%v (-want +got):\n%s", capture, diff)
		}
		if c.Hooks.Begin != nil {
			t.Errorf("%v: beside the user's way to dial there is another one", capture)
		}
		if got := c.Hooks.ProxyProtocol(name); got != 2 {
			t.Errorf("%v: got version %d of the PROXY protocol, want 2", capture, got)
		}
	}
}

// Listeners have TCP keepalive on, so that clients that have vanished are noticed.
func TestListenersNoticeVanishedClients(t *testing.T) {
	ns := netnstest.NewNS(t)
	s := socketsIn(t, ns)
	l, err := s.listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:8081"), makeTransparent)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test is over
	client, err := ns.Dial(t.Context(), "tcp", "127.0.0.1:8081")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close() //nolint:errcheck // the test is over
	if err := l.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	c, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // the test is over
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct{ level, name, want int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.SOL_TCP, unix.TCP_KEEPIDLE, 15}, {unix.SOL_TCP, unix.TCP_KEEPINTVL, 15}, {unix.SOL_TCP, unix.TCP_KEEPCNT, 9},
	} {
		got, failed := 0, error(nil)
		if err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), o.level, o.name) }); err != nil || failed != nil || got != o.want {
			t.Errorf("option %d of level %d: got %d, error %v, want %d", o.name, o.level, got, errors.Join(err, failed), o.want)
		}
	}
}

// A checksum makes the sum of everything that of nothing but ones, and is never that
// of a datagram without one, which IPv6 does not know.
func TestChecksums(t *testing.T) {
	from, to := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	for n := range 1 << 16 {
		data := []byte{byte(n >> 8), byte(n), 0xff}
		head := []byte{0, 53, 0xff, 0xff, 0, byte(8 + len(data)), 0, 0}
		sum := checksum(from, to, head, data)
		if sum == 0 {
			t.Fatalf("the datagram %x has no checksum", data)
		}
		whole := slices.Concat(from.AsSlice(), to.AsSlice(), []byte{0, unix.IPPROTO_UDP, 0, byte(8 + len(data))}, head, data, []byte{0, byte(sum >> 8), byte(sum)})
		total := uint32(0)
		for i := 0; i < len(whole); i += 2 {
			total += uint32(whole[i])<<8 | uint32(whole[i+1])
		}
		for total > 0xffff {
			total = total>>16 + total&0xffff
		}
		if total != 0xffff {
			t.Fatalf("the datagram %x has the checksum %x, with which the sum is %x", data, sum, total)
		}
	}
}
