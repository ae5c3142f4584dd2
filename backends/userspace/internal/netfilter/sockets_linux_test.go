package netfilter

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// socketsIn returns sockets in a namespace.
func socketsIn(t *testing.T, ns *netns.NS) *host.Sockets {
	t.Helper()
	return netnstest.Open(t, ns, host.OpenSockets)
}

// The socket for answers receives none of the datagrams to the host. After Close, its descriptor,
// which may be another socket's, is not used.
func TestRepliersReceiveNothing(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	s := socketsIn(t, ns)
	r, err := newReplier(s, v1.IPv4Protocol)
	testenv.NoError(t, err)
	server, err := ns.ListenPacket(t.Context(), "udp", "127.0.0.1:8081")
	testenv.NoError(t, err)
	defer server.Close() //nolint:errcheck // the test is over
	at := netip.MustParseAddrPort("127.0.0.1:8081")
	c, err := ns.Dial(t.Context(), "udp", at.String())
	testenv.NoError(t, err)
	defer c.Close() //nolint:errcheck // the test is over
	if _, err := c.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	testenv.NoError(t, server.SetReadDeadline(time.Now().Add(10*time.Second)))
	if _, _, err := server.ReadFrom(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := unix.Recvfrom(r.fd, make([]byte, 100), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("receiving: got %d bytes and error %v, want %v", n, err, unix.EAGAIN)
	}
	testenv.NoError(t, r.Close())
	if err := r.Reply(engine.Flow{Client: at, Frontend: at}, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("an answer after Close: got error %v, want %v", err, net.ErrClosed)
	}
	if err := r.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: got error %v, want %v", err, net.ErrClosed)
	}
}

// Listeners have TCP keepalive on, so that clients that have vanished are noticed.
func TestListenersNoticeVanishedClients(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	s := socketsIn(t, ns)
	ls := &listeners{}
	l, _, err := ls.listen(t.Context(), s, netip.MustParseAddrPort("127.0.0.1:8081"), false)
	testenv.NoError(t, err)
	defer ls.close() //nolint:errcheck // the test is over
	client, err := ns.Dial(t.Context(), "tcp", "127.0.0.1:8081")
	testenv.NoError(t, err)
	defer client.Close() //nolint:errcheck // the test is over
	testenv.NoError(t, l.SetDeadline(time.Now().Add(10*time.Second)))
	c, err := l.AcceptTCP()
	testenv.NoError(t, err)
	defer c.Close() //nolint:errcheck // the test is over
	raw, err := c.SyscallConn()
	testenv.NoError(t, err)
	for _, o := range []struct{ level, name, want int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.SOL_TCP, unix.TCP_KEEPIDLE, 15}, {unix.SOL_TCP, unix.TCP_KEEPINTVL, 15}, {unix.SOL_TCP, unix.TCP_KEEPCNT, 9},
	} {
		got, failed := 0, error(nil)
		if err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), o.level, o.name) }); err != nil || failed != nil || got != o.want {
			t.Errorf("option %d of level %d: got %d, error %v, want %d", o.name, o.level, got, errors.Join(err, failed), o.want)
		}
	}
}

// Between fork and exec, a program that the process starts has copies of its sockets.
func TestOpenWhileAProgramStarts(t *testing.T) {
	t.Parallel()
	s, at := socketsIn(t, netnstest.NewNS(t)), netip.MustParseAddrPort("127.0.0.1:8081")
	open := func() (*listeners, *net.TCPListener, *net.UDPConn, error) {
		ls := &listeners{}
		tcp, udp, err := ls.listen(t.Context(), s, at, false)
		return ls, tcp, udp, err
	}
	first, l, p, err := open()
	testenv.NoError(t, err)
	tcp, errTCP := l.File()
	udp, errUDP := p.File()
	testenv.NoError(t, errors.Join(errTCP, errUDP, first.close()))
	if _, _, _, err := open(); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("while the copies stay: got error %v, want %v", err, unix.EADDRINUSE)
	}
	closed := make(chan error)
	time.AfterFunc(20*time.Millisecond, func() { closed <- tcp.Close() })
	time.AfterFunc(60*time.Millisecond, func() { closed <- udp.Close() })
	second, _, _, err := open()
	testenv.NoError(t, errors.Join(err, <-closed, <-closed, second.close()))
}

// With the checksum, the one's complement sum of the datagram is all ones. The checksum is never
// 0, which means none, and is not allowed in IPv6.
func TestChecksums(t *testing.T) {
	t.Parallel()
	from, to := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	for n := range 1 << 16 {
		data := []byte{byte(n >> 8), byte(n), 0xff}
		head := []byte{0, 53, 0xff, 0xff, 0, byte(8 + len(data)), 0, 0}
		sum := checksum(from, to, head, data)
		if sum == 0 {
			t.Fatalf("datagram %x: got no checksum, want one", data)
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
			t.Fatalf("datagram %x: got checksum %x and sum %x, want sum ffff", data, sum, total)
		}
	}
}
