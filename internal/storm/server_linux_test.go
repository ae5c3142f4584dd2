package storm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/netns"
)

// answer is what a server says: the address that it was reached at, and the one that it
// sees the client at.
type answer struct{ own, client netip.AddrPort }

func parseAnswer(text string) (a answer, err error) {
	var own, client string
	if _, err := fmt.Sscan(text, &own, &client); err != nil {
		return answer{}, fmt.Errorf("answer %q: %w", text, err)
	}
	var errOwn, errClient error
	a.own, errOwn = netip.ParseAddrPort(own)
	a.client, errClient = netip.ParseAddrPort(client)
	return a, errors.Join(errOwn, errClient)
}

func say(own, client netip.AddrPort) []byte {
	return fmt.Appendf(nil, "%v %v\n", unmapped(own), unmapped(client))
}

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// serve answers on a port, TCP and UDP, at all addresses of a namespace, until the test
// ends.
func serve(t testing.TB, ns *netns.NS, port uint16) {
	t.Helper()
	address := fmt.Sprintf("[::]:%d", port)
	listener, err := ns.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	packets, err := listenPackets(t, ns, address)
	if err != nil {
		t.Fatal(errors.Join(err, listener.Close()))
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				served.Go(func() { greet(c) })
			}
		}
	})
	served.Go(func() { answerPackets(packets, port) })
	t.Cleanup(func() {
		if err := errors.Join(listener.Close(), packets.Close()); err != nil {
			t.Error(err)
		}
		served.Wait()
	})
}

// greet says all there is to say, and leaves it to the client to end the connection.
func greet(c net.Conn) {
	const patience = 2 * time.Second
	own, errOwn := netip.ParseAddrPort(c.LocalAddr().String())
	client, errClient := netip.ParseAddrPort(c.RemoteAddr().String())
	if errors.Join(errOwn, errClient, c.SetDeadline(time.Now().Add(patience))) == nil {
		if _, err := c.Write(say(own, client)); err == nil {
			_, _ = c.Read(make([]byte, 1)) // It ends when the client has gone.
		}
	}
	_ = c.Close() // The client notices what is missing.
}

// answerPackets answers datagrams, each from the address that it was sent to.
func answerPackets(c *net.UDPConn, port uint16) {
	buf, control := make([]byte, 64), make([]byte, 256)
	for {
		_, n, _, client, err := c.ReadMsgUDPAddrPort(buf, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if own, ok := destination(control[:n]); ok {
			from := unix.PktInfo6(&unix.Inet6Pktinfo{Addr: own.As16()})
			_, _, _ = c.WriteMsgUDPAddrPort(say(netip.AddrPortFrom(own, port), client), from, client) // The client notices.
		}
	}
}

func destination(control []byte) (netip.Addr, bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16 {
			return netip.AddrFrom16([16]byte(m.Data)), true
		}
	}
	return netip.Addr{}, false
}

// listenPackets makes a socket for both families that tells where datagrams were sent to.
func listenPackets(t testing.TB, ns *netns.NS, address string) (*net.UDPConn, error) {
	conn, err := ns.ListenPacket(t.Context(), "udp", address)
	if err != nil {
		return nil, err
	}
	packets, ok := conn.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a UDP socket is a %T", conn), conn.Close())
	}
	raw, err := packets.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, packets.Close())
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	return packets, errors.Join(err, failed)
}
