package engine

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// listener accepts connections at the poller of an engine.
type listener struct{ *socket }

// Listener gives a listener that serves the engine better than another one, in
// the place of l, which it closes. What the listening socket has set is inherited
// by its connections.
func (e *Engine) Listener(l *net.TCPListener) (net.Listener, error) {
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
		e.tasks.poller.start(), // for Accept waits
	)
	s := newSocket(&e.tasks.poller, fd)
	s.gone = make(chan struct{})
	if err == nil {
		s.local, err = localAddr(fd)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return listener{s}, nil
}

// Accept implements [net.Listener].
func (l listener) Accept() (net.Conn, error) {
	var conn *socket
	err := l.try(l.in, unix.EPOLLIN, func(fd int) error {
		c, peer, err := acceptNow(fd)
		if err != nil {
			return err
		}
		conn = newSocket(l.poller, c)
		conn.remote = peer
		conn.local, err = localAddr(c)
		if err != nil {
			_ = conn.Close() // There is nobody to tell.
		}
		return err
	})
	if err != nil {
		return nil, os.NewSyscallError("accept", err)
	}
	return conn, nil
}

// Close implements [net.Listener]. When it returns, the address is free: whoever is
// about to accept holds the descriptor for a moment.
func (l listener) Close() error {
	err := l.socket.Close()
	<-l.gone
	return err
}

// Addr implements [net.Listener].
func (l listener) Addr() net.Addr { return l.LocalAddr() }
