//go:build !unix && !windows

package engine

import "net"

// reader reads from a connection into buffers of a pool.
type reader struct{ conn net.Conn }

func newReader(c net.Conn) *reader { return &reader{c} }

// read returns a buffer of the pool with n bytes that were read; the error is as for
// [io.Reader]. The caller puts the buffer back, which may be nil.
func (r *reader) read(from *pool) (*[]byte, int, error) {
	buf := from.Get()
	n, err := r.conn.Read(*buf)
	return buf, n, err
}

// sendNow returns a function that sends datagrams.
func sendNow(c net.Conn) func(datagram []byte) error {
	return func(datagram []byte) error {
		_, err := c.Write(datagram)
		return err
	}
}
