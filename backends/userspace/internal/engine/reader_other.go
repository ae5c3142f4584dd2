//go:build !unix

package engine

import "net"

// reader reads from a connection into memory of a pool.
type reader struct{ conn net.Conn }

func newReader(c net.Conn) *reader { return &reader{c} }

// read gives a buffer of the pool with what was read, as [io.Reader] does.
// Whoever gets a buffer gives it back.
func (r *reader) read(from *buffers) (*[]byte, int, error) {
	buf := from.get()
	n, err := r.conn.Read(*buf)
	return buf, n, err
}

// sendNow gives what sends datagrams.
func sendNow(c net.Conn) func(datagram []byte) error {
	return func(datagram []byte) error {
		_, err := c.Write(datagram)
		return err
	}
}
