package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// portTries is how many ports are tried before the dialer reports that there is none: programs
// of the node, and connections to the same endpoint, may use some of them.
const portTries = 64

// borrowingDialer reaches endpoints from the address that they must see, for TPROXY. Its packets are
// not captured.
type borrowingDialer struct {
	sockets *host.Sockets
	// ports lends ports to UDP sockets, since the kernel does not prevent two of them from having
	// both addresses and ports in common.
	ports *ports
}

func newDialer(s *host.Sockets) *borrowingDialer {
	return &borrowingDialer{sockets: s, ports: newPorts(firstSourcePort, sourcePorts)}
}

// Dial makes a connection, or opens a socket for the datagrams of one session, as
// [engine.Hooks].Dial.
func (d *borrowingDialer) Dial(ctx context.Context, to engine.Dial) (net.Conn, error) {
	// Without keep-alives, which are not needed: the cluster removes dead endpoints.
	dialer := &net.Dialer{Control: control(reuseAddr, transparent), KeepAlive: -1}
	if to.Protocol == v1.ProtocolUDP {
		return d.dialUDP(ctx, dialer, to)
	}
	return d.dialTCP(ctx, dialer, to)
}

// dialTCP makes a connection. The source port is of a range that clients rarely use; where a
// client has the same port, chains borrowing and beside keep its own connections apart, also from
// what the kernel keeps of a closed connection of the backend.
func (d *borrowingDialer) dialTCP(ctx context.Context, dialer *net.Dialer, to engine.Dial) (net.Conn, error) {
	var taken error
	for range portTries {
		var conn *net.TCPConn
		err := d.sockets.Dial(dialer, func(dialer *net.Dialer) (err error) {
			conn, err = dialer.DialTCP(ctx, "tcp", netip.AddrPortFrom(sourceOf(to), d.ports.next()), to.To)
			return err
		})
		switch {
		case err == nil:
			return conn, nil
		case !isTaken(err):
			return nil, err
		}
		taken = err
	}
	return nil, fmt.Errorf("%w: %w", engine.ErrNoPort, taken)
}

func isTaken(err error) bool {
	return errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// sourceOf returns the address that an endpoint must see, the unspecified one if any address
// of the node is allowed.
func sourceOf(d engine.Dial) netip.Addr {
	if d.From.IsValid() {
		return d.From
	}
	return ipaddr.Unspecified(ipaddr.FamilyOf(d.To.Addr()))
}

// reuseAddr allows sockets to share their port: both addresses and ports identify a connection.
func reuseAddr(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }

// dialUDP opens a socket for the datagrams of one session. It may share its port with sockets to
// other endpoints.
func (d *borrowingDialer) dialUDP(ctx context.Context, dialer *net.Dialer, to engine.Dial) (net.Conn, error) {
	on := path{to: to.To}
	if !to.FromNode {
		on.from = to.From
	}
	for try := 1; ; try++ {
		port, err := d.ports.take(on)
		if err != nil {
			return nil, err
		}
		var conn *net.UDPConn
		err = d.sockets.Dial(dialer, func(dialer *net.Dialer) error {
			conn, err = dialer.DialUDP(ctx, "udp", netip.AddrPortFrom(sourceOf(to), port), to.To)
			return err
		})
		if err == nil {
			drain(conn)
			return &lentConn{UDPConn: conn, give: sync.OnceFunc(func() { d.ports.give(on, port) })}, nil
		}
		d.ports.give(on, port)
		switch {
		case !isTaken(err):
			return nil, err
		case try == portTries:
			return nil, fmt.Errorf("%w: %w", engine.ErrNoPort, err)
		}
	}
}

// lentConn is a socket that returns its port when it is closed.
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

// drain drops datagrams that the socket has received before it was connected: they are for
// sockets of other sessions with the same port.
func drain(c *net.UDPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return // The socket is closed.
	}
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		for range 100 { // bounded: the socket was unconnected for a moment only
			if _, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT); err != nil {
				return
			}
		}
	})
}
