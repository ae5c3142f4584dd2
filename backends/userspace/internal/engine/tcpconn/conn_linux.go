package tcpconn

import (
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

// Supported says whether this system has connections of this package.
const Supported = true

// Conn is a TCP connection. One goroutine at a time may read, one may write, and any may
// close it: calls of other goroutines then fail with [net.ErrClosed]. There are no deadlines.
type Conn struct {
	fd            int
	poller        *Poller
	local, remote netip.AddrPort

	// calls counts the system calls that are under way; with closing added, the
	// last of them closes the descriptor.
	calls   atomic.Int64
	in, out wakeup
	incoming

	mu       sync.Mutex
	number   int32 // index in Poller.conns; -1 before the connection is registered
	events   uint32
	finished chan struct{} // closed with the descriptor; nil where no goroutine waits for that
}

// incoming is the state that [Exchange] needs to wait for two connections at once.
type incoming struct {
	shared   atomic.Pointer[wakeup] // wakes the reader in place of Conn.in; may be nil
	readable atomic.Bool
	ended    atomic.Bool // nothing more will arrive beyond what can be read now
}

const closing = 1 << 40

func newConn(p *Poller, fd int) *Conn {
	return &Conn{fd: fd, poller: p, number: -1, in: newWakeup(), out: newWakeup()}
}

// beginCall begins a system call; false if the connection is closed.
func (c *Conn) beginCall() bool {
	for {
		n := c.calls.Load()
		if n >= closing {
			return false
		}
		if c.calls.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (c *Conn) endCall() {
	if c.calls.Add(-1) == closing {
		_ = c.finish() // Close has returned already.
	}
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	for {
		n := c.calls.Load()
		if n >= closing {
			return net.ErrClosed
		}
		if c.calls.CompareAndSwap(n, n+closing) {
			c.wakeReader()
			c.out.notify()
			if n == 0 {
				return c.finish()
			}
			return nil
		}
	}
}

func (c *Conn) wakeReader() {
	c.readable.Store(true)
	if shared := c.shared.Load(); shared != nil {
		shared.notify()
	} else {
		c.in.notify()
	}
}

func (c *Conn) finish() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := closeNow(c.fd)
	if c.number >= 0 {
		c.poller.forget(c.number)
	}
	if c.finished != nil {
		close(c.finished)
	}
	return call("close", err)
}

// retry calls f until it no longer fails with EAGAIN. In between, it waits for w.
func (c *Conn) retry(w wakeup, events uint32, f func(fd int) error) error {
	for {
		if !c.beginCall() {
			return net.ErrClosed
		}
		err := f(c.fd)
		if err == unix.EAGAIN { //nolint:errorlint // a system call returns the Errno itself
			err = c.waiting(events)
		}
		c.endCall()
		if err != unix.EAGAIN { //nolint:errorlint // a system call returns the Errno itself
			return err
		}
		<-w
	}
}

// waiting has the poller watch the connection, and returns EAGAIN.
func (c *Conn) waiting(events uint32) error {
	if err := c.watch(events); err != nil {
		return err
	}
	return unix.EAGAIN
}

// watch has the poller wake the goroutine that waits for events. An event that arrives before
// the goroutine waits wakes it as well.
func (c *Conn) watch(events uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.events&events == events {
		return nil
	}
	c.events |= events
	return c.poller.watch(c, c.events)
}

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (n int, err error) {
	err = c.retry(c.in, unix.EPOLLIN, func(fd int) (err error) {
		n, err = readNow(fd, b)
		return err
	})
	if n == 0 && err == nil && len(b) > 0 {
		return 0, io.EOF
	}
	return n, call("read", err)
}

// ReadLent reads into a buffer that it gets only once there is something to read. The
// caller puts the buffer back; it is nil after some errors.
func (c *Conn) ReadLent(from Buffers) (buf *[]byte, n int, err error) {
	err = c.retry(c.in, unix.EPOLLIN, func(fd int) (err error) {
		buf = from.Get()
		n, err = readNow(fd, *buf)
		if err != nil {
			from.Put(buf)
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
func (c *Conn) Write(b []byte) (written int, err error) {
	for written < len(b) && err == nil {
		err = c.retry(c.out, unix.EPOLLOUT, func(fd int) error {
			n, err := writeNow(fd, b[written:])
			written += n
			return err
		})
	}
	return written, call("write", err)
}

// CloseWrite half-closes the connection: no more will be sent.
func (c *Conn) CloseWrite() error {
	return call("shutdown", c.control(shutdownNow))
}

// SetLinger sets SO_LINGER: with sec 0, Close resets the connection.
func (c *Conn) SetLinger(sec int) error {
	on := int32(1)
	if sec < 0 {
		on = 0
	}
	return call("setsockopt", c.control(func(fd int) error {
		return setNow(fd, unix.SOL_SOCKET, unix.SO_LINGER, on, int32(sec))
	}))
}

// control calls f with the descriptor, which stays open until f returns.
func (c *Conn) control(f func(fd int) error) error {
	if !c.beginCall() {
		return net.ErrClosed
	}
	defer c.endCall()
	return f(c.fd)
}

// address is a [net.Addr].
type address netip.AddrPort

func (address) Network() string            { return "tcp" }
func (a address) String() string           { return netip.AddrPort(a).String() }
func (a address) AddrPort() netip.AddrPort { return netip.AddrPort(a) }

// LocalAddr implements [net.Conn].
func (c *Conn) LocalAddr() net.Addr { return address(c.local) }

// RemoteAddr implements [net.Conn].
func (c *Conn) RemoteAddr() net.Addr { return address(c.remote) }

// SetDeadline implements [net.Conn]. It fails with [errors.ErrUnsupported].
func (c *Conn) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline implements [net.Conn]. It fails with [errors.ErrUnsupported].
func (c *Conn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline implements [net.Conn]. It fails with [errors.ErrUnsupported].
func (c *Conn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// SyscallConn implements [syscall.Conn]. The result supports Control only.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return rawConn{c}, nil }

// rawConn is a [syscall.RawConn] that does not wait.
type rawConn struct{ conn *Conn }

// Control implements [syscall.RawConn].
func (r rawConn) Control(f func(fd uintptr)) error {
	return r.conn.control(func(fd int) error {
		f(uintptr(fd))
		return nil
	})
}

// Read implements [syscall.RawConn].
func (rawConn) Read(func(fd uintptr) bool) error { return errors.ErrUnsupported }

// Write implements [syscall.RawConn].
func (rawConn) Write(func(fd uintptr) bool) error { return errors.ErrUnsupported }
