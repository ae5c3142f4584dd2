package userspace_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/proxy"
)

// countingEcho answers datagrams in the pod with themselves, and counts them.
func (n network) countingEcho(t *testing.T, at string) *atomic.Int64 {
	t.Helper()
	c, err := n.pod.ListenPacket(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	var count atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for buf := make([]byte, 100); ; {
			size, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			count.Add(1)
			_, _ = c.WriteTo(buf[:size], from)
		}
	})
	t.Cleanup(func() {
		_ = c.Close()
		wg.Wait()
	})
	return &count
}

// datagramsAt is a Service for datagrams with an endpoint.
func datagramsAt(at, endpoint string) proxy.Snapshot {
	p := *firstOf(withEndpoint(snapshot(at), endpoint))
	p.Name.Protocol = v1.ProtocolUDP
	return proxy.NewSnapshot(snapshot(at).Node(), &p)
}

// A client that gives the address of a Service for its own has two Services that answer
// everything say no more to each other than he does to one of them: on the node, where
// any program may have that address with local routes, or elsewhere.
func TestServicesDoNotTalkToEachOther(t *testing.T) {
	const a, b = "10.96.0.1:9000", "10.96.0.2:9000"
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		for name, from := range map[string]func(network) *netns.NS{
			"the node": func(n network) *netns.NS { return n.node }, "elsewhere": func(n network) *netns.NS { return n.client },
		} {
			for _, to := range []string{a, b} {
				t.Run(name+" to "+to, func(t *testing.T) {
					n := newNetwork(t)
					n.needs(t, c)
					one, two := n.countingEcho(t, podAddr+":9000"), n.countingEcho(t, podAddr+":9001")
					apply(t, n.start(t, userspace.Options{Capture: c}), both(datagramsAt(a, podAddr+":9000"), datagramsAt(b, podAddr+":9001")))
					if err := from(n).Do(func() error { return sendAs(a, to) }); err != nil {
						t.Fatal(err)
					}
					// What goes on for ever makes thousands of them by then.
					for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
						if got := one.Load() + two.Load(); got > 4 {
							t.Fatalf("one datagram has made %d, want a few", got)
						}
					}
				})
			}
		}
	})
}

// sendAs sends a datagram from an address that may be somebody else's.
func sendAs(from, to string) error {
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from)), Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
		}), err)
	}}
	c, err := d.Dial("udp", to)
	if err != nil {
		return err
	}
	_, err = c.Write([]byte("loop"))
	return errors.Join(err, c.Close())
}

// Endpoints that accept connections and then neither read nor answer hold what is theirs,
// for as long as silence is borne, and nothing of others.
func TestSilentEndpoints(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
		const answering = podAddr + ":8081"
		n.serve(t, answering)
		silent, err := n.pod.Listen(t.Context(), "tcp", podServer) // which nobody serves
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close() //nolint:errcheck // the test is over
		b := n.start(t, userspace.Options{Capture: c, Connections: 64, Timeouts: userspace.Timeouts{Idle: 3 * time.Second}})
		apply(t, b, both(snapshot(one), withEndpoint(snapshot(two), answering)))
		before := descriptors(t)
		much := make([]byte, 16<<20)
		var clients sync.WaitGroup
		defer clients.Wait()
		for i := range 60 {
			from := netip.AddrFrom4([4]byte{10, 244, 1, byte(20 + i%20)})
			if i < 20 {
				if err := n.client.AddAddress("eth0", netip.PrefixFrom(from, 24)); err != nil {
					t.Fatal(err)
				}
			}
			conn, err := n.dialFrom(t, from)
			if err != nil {
				continue // It was one too many.
			}
			defer conn.Close() //nolint:errcheck // the test is over
			clients.Go(func() { _, _ = conn.Write(much) })
		}
		eventually(t, "the Service has what it may have", func() bool { return b.Stats().Connections >= 40 })
		if got := b.Stats().Connections; got > 50 {
			t.Errorf("the Service has %d connections of 64", got)
		}
		for range 20 {
			server, _, conn, err := n.ask(t, two)
			if err != nil || server != answering {
				t.Fatalf("another Service: got %q and error %v", server, err)
			}
			_ = conn.Close()
		}
		eventually(t, "what was silent for too long is over", func() bool { return b.Stats().Connections == 0 })
		eventually(t, "and its descriptors are free", func() bool { return descriptors(t) < before+80 })
	})
}

// Who forges addresses of clients, for connections that he cannot complete and for
// datagrams, keeps nobody else from being served, and ends no session that is used.
func TestForgedClients(t *testing.T) {
	// Many more than come between two datagrams of who uses his session: answers to forged
	// ones count as use, however late they are carried back.
	const dns, sessions = "10.96.0.2:53", 256
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
		n.serve(t, podServer)
		n.peerNamer(t, podServer)
		b := n.start(t, userspace.Options{Capture: c, Sessions: sessions})
		apply(t, b, both(snapshot(one), datagramsAt(dns, podServer)))
		steady, err := n.client.Dial(t.Context(), "udp", dns)
		if err != nil {
			t.Fatal(err)
		}
		defer steady.Close() //nolint:errcheck // the test is over
		seen := string(exchange(t.Context(), steady, []byte("?")))
		raw, err := n.forger()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(raw) //nolint:errcheck // the test is over
		for i := range 3000 {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), uint16(1024+i))
			err := errors.Join(
				forge(raw, from, netip.MustParseAddrPort(one), unix.IPPROTO_TCP),
				forge(raw, from, netip.MustParseAddrPort(dns), unix.IPPROTO_UDP))
			if err != nil {
				t.Fatal(err)
			}
			if i%16 == 0 {
				if got := string(exchange(t.Context(), steady, []byte("?"))); got != seen {
					t.Fatalf("after %d forged datagrams, the endpoint sees %q, want %q as before", i, got, seen)
				}
			}
		}
		for range 5 {
			server, _, conn, err := n.ask(t, one)
			if conn == nil || server != podServer {
				t.Fatalf("after all that: got %q and error %v", server, err)
			}
			_ = conn.Close()
		}
		if s := b.Stats(); s.Sessions > sessions+8 || s.Crowded < 2000 || s.Connections > 5 || s.Faults != 0 {
			t.Errorf("got %+v, want %d sessions at most, thousands too many, and no connections but real ones", s, sessions)
		}
	})
}

// forger gives a socket of the client's that sends packets from any address.
func (n network) forger() (fd int, err error) {
	err = n.client.Do(func() error {
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

// sum is the checksum of the Internet.
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
