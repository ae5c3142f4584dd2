package tcpconn

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// listener accepts connections that belong to a poller.
type listener struct{ *Conn }

// Listen returns a listener whose connections are of this package, and closes l. They
// inherit the options of the listening socket.
func (p *Poller) Listen(l *net.TCPListener) (net.Listener, error) {
	f, err := l.File()
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err = errors.Join(call("fcntl", err), f.Close(), l.Close()); err != nil {
		return nil, err
	}
	err = errors.Join(
		call("fcntl", unix.SetNonblock(fd, true)),
		call("setsockopt", setNow(fd, unix.SOL_TCP, unix.TCP_NODELAY, 1)),
		p.start(), // Accept will need the poller: open its descriptor now, not at some later time
	)
	c := newConn(p, fd)
	c.finished = make(chan struct{})
	if err == nil {
		c.local, err = localAddr(fd)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return listener{c}, nil
}

// Accept implements [net.Listener].
func (l listener) Accept() (net.Conn, error) {
	var conn *Conn
	err := l.retry(l.in, unix.EPOLLIN, func(fd int) error {
		c, peer, err := acceptNow(fd)
		if err != nil {
			return err
		}
		conn = newConn(l.poller, c)
		conn.remote = peer
		conn.local, err = localAddr(c)
		if err != nil {
			_ = conn.Close() // An error would change nothing.
		}
		return err
	})
	if err != nil {
		return nil, os.NewSyscallError("accept", err)
	}
	return conn, nil
}

// Close implements [net.Listener]. It returns when the address is free: a goroutine in Accept
// may keep the descriptor open for a moment.
func (l listener) Close() error {
	err := l.Conn.Close()
	<-l.finished
	return err
}

// Addr implements [net.Listener].
func (l listener) Addr() net.Addr { return l.LocalAddr() }
