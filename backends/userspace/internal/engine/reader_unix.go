//go:build unix

package engine

import (
	"io"
	"net"
	"os"
	"syscall"
)

// reader reads from a connection into a buffer that it gets only once there is something to
// read: a silent connection holds none.
type reader struct {
	conn   net.Conn
	raw    syscall.RawConn // nil for connections without a descriptor
	stream bool

	// Arguments and results of try, which read calls.
	from *pool
	buf  *[]byte
	n    int
	err  error
	try  func(fd uintptr) bool
}

func newReader(c net.Conn) *reader {
	r := &reader{conn: c}
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

// read returns a buffer of the pool with n bytes that were read; the error is as for
// [io.Reader]. The caller puts the buffer back, which may be nil.
func (r *reader) read(from *pool) (*[]byte, int, error) {
	if r.raw == nil {
		buf := from.Get()
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
	r.buf = r.from.Get()
	for {
		r.n, r.err = syscall.Read(int(fd), *r.buf)
		if r.err == syscall.EAGAIN { //nolint:errorlint // a system call returns the Errno itself
			r.from.Put(r.buf)
			r.buf, r.n, r.err = nil, 0, nil
			return false
		}
		if r.err != syscall.EINTR { //nolint:errorlint // a system call returns the Errno itself
			return true
		}
	}
}

// sendNow returns a function that sends a datagram at once. If the socket's buffer is full, it
// fails with [syscall.EAGAIN]: datagrams that pile up for one endpoint must not delay datagrams for
// other endpoints.
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
