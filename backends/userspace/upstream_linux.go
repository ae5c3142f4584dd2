package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// portTries is how many ports are tried, of which programs of the node may have
// some and connections to the same endpoint others, before there is said to be none.
const portTries = 64

// begin begins a connection to an endpoint, from the address that it must see.
// The port is of a range that clients do not use by themselves: what is left of a
// connection of ours for a while must never meet one of theirs.
func (s *sockets) begin(d engine.Dial) (fd int, err error) {
	share := engine.Option{Level: unix.SOL_SOCKET, Name: unix.SO_REUSEADDR, Value: 1}
	foreign := engine.Option{Level: unix.SOL_IP, Name: unix.IP_TRANSPARENT, Value: 1}
	if d.To.Addr().Is6() {
		foreign.Level, foreign.Name = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	for range portTries {
		from := netip.AddrPortFrom(sourceOf(d), s.nextPort())
		err = s.do(func() error {
			fd, err = engine.Begin(from, d.To, share, foreign)
			return err
		})
		if !isTaken(err) {
			return fd, err
		}
	}
	return -1, fmt.Errorf("%w: %w", engine.ErrNoPort, err)
}

// nextPort gives the ports in turn, neighbours far apart.
func (s *sockets) nextPort() uint16 {
	n := uint64(s.ports.Add(1)) * uint64(engine.Stride(sourcePorts))
	return firstSourcePort + uint16(n%uint64(sourcePorts))
}

func isTaken(err error) bool {
	return errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// sourceOf gives the address that an endpoint must see, that of nobody for any of
// the node's.
func sourceOf(d engine.Dial) netip.Addr {
	switch {
	case d.From.IsValid():
		return d.From
	case d.To.Addr().Is6():
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// dial makes a socket for the datagrams of one session. Sockets share their port
// with others, of other endpoints.
func (s *sockets) dial(ctx context.Context, d engine.Dial) (net.Conn, error) {
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
			conn, err = dialer.DialUDP(ctx, "udp", netip.AddrPortFrom(sourceOf(d), port), d.To)
			return err
		})
		if err == nil {
			drain(conn)
			return &lentConn{UDPConn: conn, give: sync.OnceFunc(func() { s.packetPorts.Give(on, port) })}, nil
		}
		s.packetPorts.Give(on, port)
		switch {
		case !isTaken(err):
			return nil, err
		case try == portTries:
			return nil, fmt.Errorf("%w: %w", engine.ErrNoPort, err)
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
