package userspace_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// countingEcho answers datagrams to the pod with themselves, and counts them.
func (n network) countingEcho(t *testing.T, at string) *atomic.Int64 {
	t.Helper()
	var count atomic.Int64
	n.receive(t, at, func(c net.PacketConn, datagram []byte, from net.Addr) {
		count.Add(1)
		_, _ = c.WriteTo(datagram, from)
	})
	return &count
}

// If a client forges the address of a Service as its source, two Services that answer any
// datagram do not answer each other for ever: whether the client is on the node or elsewhere.
func TestServicesDoNotAnswerEachOther(t *testing.T) {
	t.Parallel()
	const a, b = "10.96.0.1:9000", "10.96.0.2:9000"
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		for _, host := range []string{"node", "client"} {
			for _, to := range []string{a, b} {
				t.Run(host+" to "+to, func(t *testing.T) {
					t.Parallel()
					n := newNetwork(t).from(host)
					one, two := n.countingEcho(t, podSocket), n.countingEcho(t, podAddr+":9001")
					apply(t, n.start(t, userspace.Options{Capture: c}), services(dns(a, podSocket), dns(b, podAddr+":9001")))
					conn, err := n.dial(t, "udp", netip.MustParseAddrPort(a), to, transparent)
					testenv.NoError(t, err)
					send(t, conn, "loop")
					_ = conn.Close()
					// An endless exchange makes thousands of datagrams by then.
					for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
						if got := one.Load() + two.Load(); got > 4 {
							t.Fatalf("datagrams after one of the client: got %d, want 4 at most", got)
						}
					}
				})
			}
		}
	})
}

// Endpoints that accept connections and then neither read nor answer hold the share of their own
// Service, until the idle timeout, and nothing else.
func TestSilentEndpoints(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		silent, err := n.NS("pod").Listen(t.Context(), "tcp", podSocket) // accepted by the kernel only
		testenv.NoError(t, err)
		defer silent.Close() //nolint:errcheck // the test is over
		b := n.start(t, userspace.Options{Capture: c, Connections: 64, Timeouts: userspace.Timeouts{Idle: 3 * time.Second}})
		apply(t, b, services(web(one, podSocket), web(two, otherPod)))
		before := stagetest.Descriptors(t)
		much := make([]byte, 16<<20)
		var clients sync.WaitGroup
		defer clients.Wait()
		for i := range 60 {
			conn, err := n.dialAs(t, i, 20)
			if err != nil {
				continue // The connection was beyond the limit.
			}
			defer conn.Close() //nolint:errcheck // the test is over
			clients.Go(func() { _, _ = conn.Write(much) })
		}
		eventually(t, "the Service has its share", func() bool { return b.Abilities().CountConnections().Connections >= 40 })
		if got := b.Abilities().CountConnections().Connections; got > 50 {
			t.Errorf("connections of the Service: got %d of 64, want 50 at most", got)
		}
		for range 20 {
			_, conn := n.wantServer(t, two, otherPod)
			_ = conn.Close()
		}
		eventually(t, "the silent connections have ended", func() bool { return b.Abilities().CountConnections().Connections == 0 })
		eventually(t, "their descriptors are closed", func() bool { return stagetest.Descriptors(t) < before+80 })
	})
}

// Packets with forged addresses, for connections that are never completed and for datagrams, do
// not stop other clients, and end no session that is used.
func TestForgedClientAddresses(t *testing.T) {
	t.Parallel()
	// The limit is much higher than the number of forged datagrams between two of the steady
	// session: answers to forged ones count as use, however late they are carried.
	const frontend, sessions = "10.96.0.2:53", 256
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		b := n.start(t, userspace.Options{Capture: c, Sessions: sessions})
		apply(t, b, services(web(one), dns(frontend)))
		steady := n.flow(t, frontend)
		seen := askAgain(t, steady).Client
		raw, err := n.forger()
		testenv.NoError(t, err)
		defer unix.Close(raw) //nolint:errcheck // the test is over
		for i := range 3000 {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), uint16(1024+i))
			err := errors.Join(
				forge(raw, from, netip.MustParseAddrPort(one), unix.IPPROTO_TCP),
				forge(raw, from, netip.MustParseAddrPort(frontend), unix.IPPROTO_UDP))
			testenv.NoError(t, err)
			if i%16 == 0 {
				if got := askAgain(t, steady).Client; got != seen {
					t.Fatalf("after %d forged datagrams, the endpoint sees %v, want %v as before", i, got, seen)
				}
			}
		}
		for range 5 {
			a, conn, err := n.ask(t, one)
			for tries := 0; err != nil && tries < 3; tries++ { // A packet may be lost.
				a, conn, err = n.ask(t, one)
			}
			if err != nil || a.Own.String() != podServer {
				t.Fatalf("after the forged packets: got server %v and error %v, want %s", a.Own, err, podServer)
			}
			_ = conn.Close()
		}
		if s := b.Abilities().CountConnections(); s.Sessions > sessions+8 || s.Crowded < 2000 || s.Connections > 5 || s.Faults != 0 {
			t.Errorf("got %+v, want about %d sessions at most, thousands crowded, and no forged connections", s, sessions)
		}
	})
}

// forger returns a socket in the client's namespace that sends packets from any address.
func (n network) forger() (fd int, err error) {
	err = n.NS("client").Do(func() error {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	return fd, err
}

// forge sends the first packet of a connection, or a datagram.
func forge(fd int, from, to netip.AddrPort, protocol byte) error {
	head := make([]byte, 20, 60)
	head[0], head[8], head[9] = 0x45, 64, protocol
	copy(head[12:], from.Addr().AsSlice())
	copy(head[16:], to.Addr().AsSlice())
	segment := binary.BigEndian.AppendUint16(nil, from.Port())
	segment = binary.BigEndian.AppendUint16(segment, to.Port())
	sumAt := 6
	if protocol == unix.IPPROTO_TCP {
		segment = append(segment, 1, 2, 3, 4, 0, 0, 0, 0, 5<<4, 0x02, 0xff, 0xff, 0, 0, 0, 0) // SYN
		sumAt = 16
	} else {
		segment = append(segment, 0, 9, 0, 0, '?')
	}
	pseudo := append(append(append([]byte(nil), head[12:20]...), 0, protocol, 0, byte(len(segment))), segment...)
	binary.BigEndian.PutUint16(segment[sumAt:], sum(pseudo))
	return unix.Sendto(fd, append(head, segment...), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()})
}

// sum returns the Internet checksum.
func sum(b []byte) uint16 {
	var total uint32
	for i, x := range b {
		total += uint32(x) << (8 * (1 - i%2))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}
