//go:build unix

package engine

import (
	"io"
	"net"
	"os"
	"syscall"
)

// reader reads from a connection into memory that is taken only once there is
// something to read: a silent connection holds none.
type reader struct {
	conn   net.Conn
	lent   lentReader      // nil where it does not do so by itself
	raw    syscall.RawConn // nil where there is no descriptor
	stream bool

	// What follows is between read and try.
	from *buffers
	buf  *[]byte
	n    int
	err  error
	try  func(fd uintptr) bool
}

// lentReader is a connection that reads as [reader.read] does.
type lentReader interface {
	readLent(from *buffers) (*[]byte, int, error)
}

func newReader(c net.Conn) *reader {
	r := &reader{conn: c}
	if l, ok := c.(lentReader); ok {
		r.lent = l
		return r
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			r.raw = raw
		}
	}
	_, datagrams := c.(net.PacketConn)
	r.stream = !datagrams
	r.try = r.readWhenReady
	return r
}

// read gives a buffer of the pool with what was read, as [io.Reader] does.
// Whoever gets a buffer gives it back.
func (r *reader) read(from *buffers) (*[]byte, int, error) {
	if r.lent != nil {
		return r.lent.readLent(from)
	}
	if r.raw == nil {
		buf := from.get()
		n, err := r.conn.Read(*buf)
		return buf, n, err
	}
	r.from, r.buf, r.n, r.err = from, nil, 0, nil
	if err := r.raw.Read(r.try); err != nil {
		return r.buf, 0, err
	}
	if r.err != nil {
		return r.buf, 0, os.NewSyscallError("read", r.err) // n is -1
	}
	if r.n == 0 && r.stream {
		return r.buf, 0, io.EOF
	}
	return r.buf, r.n, nil
}

func (r *reader) readWhenReady(fd uintptr) (done bool) {
	r.buf = r.from.get()
	for {
		r.n, r.err = syscall.Read(int(fd), *r.buf)
		if r.err == syscall.EAGAIN { //nolint:errorlint // a system call gives the number itself
			r.from.put(r.buf)
			r.buf, r.n, r.err = nil, 0, nil
			return false
		}
		if r.err != syscall.EINTR { //nolint:errorlint // a system call gives the number itself
			return true
		}
	}
}

// sendNow gives what sends datagrams at once or, where there is no room, fails with
// [syscall.EAGAIN]: one endpoint for which datagrams pile up must not hold up those
// for others.
func sendNow(c net.Conn) func(datagram []byte) error {
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			return func(datagram []byte) error { return writeRaw(raw, datagram) }
		}
	}
	return func(datagram []byte) error {
		_, err := c.Write(datagram)
		return err
	}
}

func writeRaw(raw syscall.RawConn, datagram []byte) error {
	var failed error
	err := raw.Write(func(fd uintptr) bool {
		for {
			_, failed = syscall.Write(int(fd), datagram)
			if failed != syscall.EINTR {
				return true
			}
		}
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("write", failed)
}
