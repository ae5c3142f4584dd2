package engine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Option is one of a socket.
type Option struct{ Level, Name, Value int }

// Begin begins a connection, from an address or, if that is not valid, from any,
// and gives the descriptor of its socket. It waits for nothing.
func Begin(from, to netip.AddrPort, options ...Option) (fd int, err error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	if fd, err = socketNow(family); err != nil {
		return -1, call("socket", err)
	}
	if err := begin(fd, from, to, options); err != nil {
		return -1, errors.Join(err, closeNow(fd))
	}
	return fd, nil
}

func begin(fd int, from, to netip.AddrPort, options []Option) error {
	if err := setNow(fd, unix.SOL_TCP, unix.TCP_NODELAY, 1); err != nil {
		return call("setsockopt", err)
	}
	for _, o := range options {
		if err := setNow(fd, o.Level, o.Name, int32(o.Value)); err != nil {
			return call("setsockopt", err)
		}
	}
	if from.IsValid() {
		if err := bindNow(fd, from); err != nil {
			return call("bind", err)
		}
	}
	if err := connectNow(fd, to); !errors.Is(err, unix.EINPROGRESS) {
		return call("connect", err)
	}
	return nil
}

// defaultBegin is the default way to begin a connection.
func defaultBegin() func(Dial) (int, error) {
	return func(d Dial) (int, error) { return Begin(netip.AddrPort{}, d.To) }
}

// await makes a connection of what has begun.
func (e *Engine) await(ctx context.Context, fd int, to netip.AddrPort, patience time.Duration) (net.Conn, error) {
	s := newSocket(&e.tasks.poller, fd)
	s.remote = to
	if err := s.connected(ctx, patience); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// own makes a socket of a connection of package net, which then is closed. Others
// are left as they are.
func (e *Engine) own(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	fd := -1
	if e := raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) }); e != nil || err != nil {
		return c // It works, too.
	}
	s := newSocket(&e.tasks.poller, fd)
	s.local, s.remote = addrOf(tcp.LocalAddr()), addrOf(tcp.RemoteAddr())
	_ = tcp.Close() // The other descriptor keeps the connection.
	return s
}
