package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// netConn is a connection of package net that the engine relays without adopting it.
// TestMeasure compares package tcpconn with such connections.
type netConn struct{ *net.TCPConn }

// Splice moves bulk data while more keeps arriving, as [tcpconn.Conn.Splice] does, by [io.Copy],
// one piece at a time.
func (c netConn) Splice(to net.Conn, used func(to net.Conn, n int)) error {
	target, ok := to.(netConn)
	if !ok {
		return errors.ErrUnsupported
	}
	const piece, pause = 4 << 20, 200 * time.Millisecond
	defer c.SetReadDeadline(time.Time{}) //nolint:errcheck // the next read returns the error
	for {
		if err := c.SetReadDeadline(time.Now().Add(pause)); err != nil {
			return err
		}
		n, err := target.ReadFrom(&io.LimitedReader{R: c.TCPConn, N: piece})
		if n > 0 {
			used(to, int(n))
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && n > 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		case n < piece:
			return io.EOF
		}
	}
}

// netListener accepts connections of package net for an engine that does not adopt them.
type netListener struct{ *net.TCPListener }

// Accept implements [net.Listener].
func (l netListener) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return netConn{c}, nil
}

// dialNet is a dialer that returns netConns.
func dialNet(ctx context.Context, d Dial) (net.Conn, error) {
	c, err := dialAny(ctx, d)
	if tcp, ok := c.(*net.TCPConn); ok {
		return netConn{tcp}, err
	}
	return c, err
}
