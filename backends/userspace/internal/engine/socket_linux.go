package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a TCP connection, or a listener, at the poller of an engine. One
// goroutine at a time may read, one may write, and anybody may close it: what
// others are doing then fails with [net.ErrClosed]. There are no deadlines.
type socket struct {
	fd            int
	poller        *poller
	local, remote netip.AddrPort

	// uses counts the system calls that are under way; with closing added, the
	// last of them closes the descriptor.
	uses    atomic.Int64
	in, out gate
	turn

	mu     sync.Mutex
	number int32 // at the poller; -1 at first
	events uint32
	gone   chan struct{} // closed with the descriptor; nil where nobody waits for that
}

// turn is how a goroutine is told that it can read, if it waits for two sockets.
type turn struct {
	both     atomic.Pointer[gate] // that of the other socket, in the place of socket.in; may be nil
	readable atomic.Bool
	ended    atomic.Bool // nothing comes any more but what is there
}

const closing = 1 << 40

func newSocket(p *poller, fd int) *socket {
	return &socket{fd: fd, poller: p, number: -1, in: newGate(), out: newGate()}
}

// use begins a system call; false if the socket is closed.
func (s *socket) use() bool {
	for {
		n := s.uses.Load()
		if n >= closing {
			return false
		}
		if s.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (s *socket) unuse() {
	if s.uses.Add(-1) == closing {
		_ = s.finish() // whoever has closed it is gone
	}
}

// Close implements [net.Conn].
func (s *socket) Close() error {
	for {
		n := s.uses.Load()
		if n >= closing {
			return net.ErrClosed
		}
		if s.uses.CompareAndSwap(n, n+closing) {
			s.wakeReader()
			s.out.open()
			if n == 0 {
				return s.finish()
			}
			return nil
		}
	}
}

// wakeReader lets the one through who waits for something to read.
func (s *socket) wakeReader() {
	s.readable.Store(true)
	if both := s.both.Load(); both != nil {
		both.open()
	} else {
		s.in.open()
	}
}

func (s *socket) finish() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := closeNow(s.fd)
	if s.number >= 0 {
		s.poller.leave(s.number)
	}
	if s.gone != nil {
		close(s.gone)
	}
	return call("close", err)
}

// try calls f again and again until it gives something else than that it would
// have to wait.
func (s *socket) try(g gate, events uint32, f func(fd int) error) error {
	for {
		if !s.use() {
			return net.ErrClosed
		}
		err := f(s.fd)
		if err == unix.EAGAIN { //nolint:errorlint // a system call gives the number itself
			err = s.later(events)
		}
		s.unuse()
		if err != unix.EAGAIN { //nolint:errorlint // a system call gives the number itself
			return err
		}
		<-g
	}
}

// later gives EAGAIN, and has the socket watched.
func (s *socket) later(events uint32) error {
	if err := s.watch(events); err != nil {
		return err
	}
	return unix.EAGAIN
}

// watch sees to it that the gates are opened. The first one who waits in a
// direction has it watched, and events that come between that and his waiting
// find the gate open.
func (s *socket) watch(events uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.events&events == events {
		return nil
	}
	s.events |= events
	return s.poller.watch(s, s.events)
}

// Read implements [net.Conn].
func (s *socket) Read(b []byte) (n int, err error) {
	err = s.try(s.in, unix.EPOLLIN, func(fd int) (err error) {
		n, err = readNow(fd, b)
		return err
	})
	if n == 0 && err == nil && len(b) > 0 {
		return 0, io.EOF
	}
	return n, call("read", err)
}

// readLent reads into memory that is taken only once there is something to read.
func (s *socket) readLent(from *buffers) (buf *[]byte, n int, err error) {
	err = s.try(s.in, unix.EPOLLIN, func(fd int) (err error) {
		buf = from.get()
		n, err = readNow(fd, *buf)
		if err != nil {
			from.put(buf)
			buf = nil
		}
		return err
	})
	if n == 0 && err == nil {
		return buf, 0, io.EOF
	}
	return buf, n, call("read", err)
}

// Write implements [net.Conn].
func (s *socket) Write(b []byte) (written int, err error) {
	for written < len(b) && err == nil {
		err = s.try(s.out, unix.EPOLLOUT, func(fd int) error {
			n, err := writeNow(fd, b[written:])
			written += n
			return err
		})
	}
	return written, call("write", err)
}

// CloseWrite tells the other end that there is no more to come.
func (s *socket) CloseWrite() error {
	return call("shutdown", s.control(shutdownNow))
}

// SetLinger has the connection reset when it is closed, if sec is 0.
func (s *socket) SetLinger(sec int) error {
	on := int32(1)
	if sec < 0 {
		on = 0
	}
	return call("setsockopt", s.control(func(fd int) error {
		return setNow(fd, unix.SOL_SOCKET, unix.SO_LINGER, on, int32(sec))
	}))
}

func (s *socket) control(f func(fd int) error) error {
	if !s.use() {
		return net.ErrClosed
	}
	defer s.unuse()
	return f(s.fd)
}

// connected waits until the connection that has been begun is there.
func (s *socket) connected(ctx context.Context, patience time.Duration) error {
	var timer *time.Timer
	isLast := false
	for {
		err := s.control(func(fd int) error {
			err := connectNow(fd, s.remote)
			if errors.Is(err, unix.EALREADY) || errors.Is(err, unix.EINPROGRESS) {
				return s.later(unix.EPOLLOUT)
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
		case <-s.out:
		case <-timer.C:
			isLast = true // A busy machine may be late with the news.
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// address is a [net.Addr].
type address netip.AddrPort

func (address) Network() string            { return "tcp" }
func (a address) String() string           { return netip.AddrPort(a).String() }
func (a address) AddrPort() netip.AddrPort { return netip.AddrPort(a) }

// LocalAddr implements [net.Conn].
func (s *socket) LocalAddr() net.Addr { return address(s.local) }

// RemoteAddr implements [net.Conn].
func (s *socket) RemoteAddr() net.Addr { return address(s.remote) }

// SetDeadline implements [net.Conn].
func (s *socket) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline implements [net.Conn].
func (s *socket) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline implements [net.Conn].
func (s *socket) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// SyscallConn implements [syscall.Conn], for whoever wants to know more of a
// socket.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return rawSocket{s}, nil }

// rawSocket is a [syscall.RawConn] without waiting.
type rawSocket struct{ *socket }

// Control implements [syscall.RawConn].
func (r rawSocket) Control(f func(fd uintptr)) error {
	return r.control(func(fd int) error {
		f(uintptr(fd))
		return nil
	})
}

// Read implements [syscall.RawConn].
func (rawSocket) Read(func(fd uintptr) bool) error { return errors.ErrUnsupported }

// Write implements [syscall.RawConn].
func (rawSocket) Write(func(fd uintptr) bool) error { return errors.ErrUnsupported }
