package engine

import (
	"errors"
	"io"
	"net"
	"time"

	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/internal/pause"
)

// PacketListener receives the datagrams of clients, and sends answers.
type PacketListener interface {
	Replier
	// Receive waits for a datagram, and returns its length in the buffer and
	// its flow. Once the listener is closed, it fails with [net.ErrClosed].
	Receive(buf []byte) (int, Flow, error)
	io.Closer
}

// ServePackets forwards the datagrams of a listener to endpoints, until the engine or
// the listener is closed. It closes the listener.
func (e *Engine) ServePackets(l PacketListener) error {
	buf := make([]byte, maxDatagram)
	return e.receive(l, func() error {
		n, f, err := l.Receive(buf)
		if err == nil {
			e.Datagram(f, buf[:n], l)
		}
		return err
	})
}

// receive calls next, which waits for a connection or a datagram, until the engine or the listener
// is closed. It counts other errors of the listener, and retries after a delay, which grows with each
// failure in a row. It closes the listener.
func (e *Engine) receive(l io.Closer, next func() error) error {
	if !e.tasks.track(l) {
		return net.ErrClosed
	}
	defer e.tasks.untrack(l)
	defer l.Close() //nolint:errcheck // an error would change nothing
	for delay := time.Duration(0); ; {
		err := next()
		switch {
		case err == nil, concernsOne(err):
			delay = 0
		case e.tasks.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			e.report(err)
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			_ = pause.For(e.tasks.ctx, delay) // The next turn checks the context.
		}
	}
}

// concernsOne reports whether an error of a listener is about a single datagram: an answer that
// did not reach its client, or a datagram that was too large to receive. The next datagram may
// be for any other client.
func concernsOne(err error) bool {
	cause := neterr.Of(err)
	return cause == neterr.Undelivered || cause == neterr.TooLarge
}
