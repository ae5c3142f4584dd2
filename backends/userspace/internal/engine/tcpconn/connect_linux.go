package tcpconn

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Begin begins a TCP connection and returns the descriptor of its nonblocking socket. If from
// is not valid, the kernel chooses the source address. Begin does not wait.
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

// Connect waits until a nonblocking socket is connected to the address to, and returns the
// connection. The poller owns the descriptor, also after an error. Connect fails with
// [context.DeadlineExceeded] after patience, and with the error of ctx when ctx ends.
func (p *Poller) Connect(ctx context.Context, fd int, to netip.AddrPort, patience time.Duration) (net.Conn, error) {
	c := newConn(p, fd)
	c.remote = to
	if err := c.connected(ctx, patience); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// connected waits until the connection is established.
func (c *Conn) connected(ctx context.Context, patience time.Duration) error {
	var timer *time.Timer
	isLast := false
	for {
		err := c.control(func(fd int) error {
			err := connectNow(fd, c.remote)
			if errors.Is(err, unix.EALREADY) || errors.Is(err, unix.EINPROGRESS) {
				return c.waiting(unix.EPOLLOUT)
			}
			return err
		})
		switch {
		case !errors.Is(err, unix.EAGAIN):
			return call("connect", err)
		case isLast:
			return context.DeadlineExceeded
		}
		if timer == nil {
			timer = time.NewTimer(patience)
			defer timer.Stop()
		}
		select {
		case <-c.out:
		case <-timer.C:
			isLast = true // On a busy machine the event may arrive late: check once more.
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Adopt turns a [net.TCPConn] into a connection of this package, and closes the original
// descriptor. It returns any other connection unchanged.
func (p *Poller) Adopt(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return conn
	}
	fd := -1
	if e := raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) }); e != nil || err != nil {
		return conn // Without a second descriptor the connection cannot be adopted.
	}
	c := newConn(p, fd)
	c.local, c.remote = addrPortOf(tcp.LocalAddr()), addrPortOf(tcp.RemoteAddr())
	_ = tcp.Close() // The other descriptor keeps the connection.
	return c
}

func addrPortOf(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	at := t.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
