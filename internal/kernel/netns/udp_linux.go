package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// MaxDatagram is the maximum length of a request to a [UDPServer] in bytes; it truncates
// longer requests.
const MaxDatagram = 1 << 14

// UDPServer answers datagrams on one port, in both families. The source of each reply is
// the destination of its request.
type UDPServer struct {
	conn *net.UDPConn
	port uint16
}

// ListenUDP opens a port at all addresses of the namespace.
func (n *NS) ListenUDP(ctx context.Context, port uint16) (*UDPServer, error) {
	conn, err := within(n, func() (net.PacketConn, error) {
		config := net.ListenConfig{Control: prepareUDP}
		return config.ListenPacket(ctx, "udp", fmt.Sprintf("[::]:%d", port))
	})
	if err != nil {
		return nil, err
	}
	udp, ok := conn.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a UDP socket is a %T", conn), conn.Close())
	}
	return &UDPServer{conn: udp, port: port}, nil
}

// prepareUDP makes a socket report the destinations of datagrams, and sets a large receive
// buffer: hundreds of clients may send at once while the server waits for a CPU, and with
// the default size the kernel drops datagrams if more than about 200 are queued.
func prepareUDP(_, _ string, raw syscall.RawConn) error {
	const size = 8 << 20
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) != nil {
			// In a user namespace, the buffer is smaller.
			failed = errors.Join(failed, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, size))
		}
	})
	return errors.Join(err, failed)
}

// Serve answers requests until the server is closed. It passes IPv4 addresses to answer in
// 4-byte form. It ignores errors: the client that is affected gets no reply.
func (s *UDPServer) Serve(answer func(question []byte, client, own netip.AddrPort) []byte) {
	buf, control := make([]byte, MaxDatagram), make([]byte, 256)
	for {
		n, m, _, client, err := s.conn.ReadMsgUDPAddrPort(buf, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		own, ok := destination(control[:m])
		if err != nil || !ok {
			continue
		}
		text := answer(buf[:n], unmapped(client), netip.AddrPortFrom(own.Unmap(), s.port))
		from := unix.PktInfo6(&unix.Inet6Pktinfo{Addr: own.As16()})
		_, _, _ = s.conn.WriteMsgUDPAddrPort(text, from, client)
	}
}

// Close ends Serve.
func (s *UDPServer) Close() error { return s.conn.Close() }

// destination reads the address that a datagram was sent to. IPv4 addresses are in
// IPv4-mapped IPv6 form there, as they must be for sending.
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

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
