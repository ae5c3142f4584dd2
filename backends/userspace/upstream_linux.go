package userspace

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// packetPortTries is how many ports are tried which somebody else may have.
const packetPortTries = 8

// dialPackets makes a socket for the datagrams of one session. Sockets share
// their port with others, of other endpoints.
func (s *sockets) dialPackets(ctx context.Context, d engine.Dial, from netip.Addr) (net.Conn, error) {
	on := engine.Path{To: d.To}
	if !d.FromNode {
		on.From = d.From
	}
	dialer := net.Dialer{Control: reusable}
	for try := 1; ; try++ {
		port, err := s.packetPorts.Take(on)
		if err != nil {
			return nil, err
		}
		var conn *net.UDPConn
		err = s.do(func() error {
			conn, err = dialer.DialUDP(ctx, "udp", netip.AddrPortFrom(from, port), d.To)
			return err
		})
		if err == nil {
			drain(conn)
			return &lentConn{UDPConn: conn, give: sync.OnceFunc(func() { s.packetPorts.Give(on, port) })}, nil
		}
		s.packetPorts.Give(on, port)
		if !isTaken(err) || try == packetPortTries {
			return nil, err
		}
	}
}

// lentConn is a socket that gives back its port.
type lentConn struct {
	*net.UDPConn

	give func()
}

// Close closes the socket.
func (c *lentConn) Close() error {
	err := c.UDPConn.Close()
	c.give()
	return err
}

// drain throws away what came in before the socket was connected: it is for
// others with the same port.
func drain(c *net.UDPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return // It is closed.
	}
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		for range 100 { // it is a moment's worth
			if _, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT); err != nil {
				return
			}
		}
	})
}
