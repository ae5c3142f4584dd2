package engine

import (
	"errors"
	"io"
	"net"

	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
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
// the listener is closed. It counts other errors of the listener, and retries after a
// delay, which grows with each failure in a row. ServePackets closes the listener.
func (e *Engine) ServePackets(l PacketListener) error {
	if !e.tasks.track(l) {
		return net.ErrClosed
	}
	defer e.tasks.untrack(l)
	defer l.Close() //nolint:errcheck // an error would change nothing
	buf := make([]byte, maxDatagram)
	var pause backoff
	for {
		n, f, err := l.Receive(buf)
		switch {
		case err == nil:
			pause = 0
			e.Datagram(f, buf[:n], l)
		case e.tasks.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case concernsOne(err):
			pause = 0
		default:
			e.report(err)
			pause.wait(e.tasks.ctx)
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
