package engine

import (
	"net"
	"syscall"
)

// reader reads from a connection into a buffer that it gets only once there is something to
// read: a silent connection holds none.
type reader struct {
	conn net.Conn
	raw  syscall.RawConn // nil for connections without a socket
	// full says that the last read has filled its buffer. More is likely to follow, and waiting
	// for it costs a system call.
	full bool
}

func newReader(c net.Conn) *reader {
	r := &reader{conn: c}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			r.raw = raw
		}
	}
	return r
}

// read returns a buffer of the pool with n bytes that were read; the error is as for
// [io.Reader]. The caller puts the buffer back, which may be nil.
func (r *reader) read(from *pool) (*[]byte, int, error) {
	if r.raw != nil && !r.full {
		if err := r.await(); err != nil {
			return nil, 0, err
		}
	}
	buf := from.Get()
	n, err := r.conn.Read(*buf)
	r.full = n == len(*buf)
	return buf, n, err
}

// await waits until there is something to read, or the other side has sent everything.
func (r *reader) await() error {
	waited := false
	return r.raw.Read(func(uintptr) bool { // called before and after waiting
		before := waited
		waited = true
		return before
	})
}

// sendNow returns a function that sends datagrams. Windows queues them, so that it does not wait
// for the network.
func sendNow(c net.Conn) func(datagram []byte) error {
	return func(datagram []byte) error {
		_, err := c.Write(datagram)
		return err
	}
}
