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
// the listener is closed. It closes the listener. It does not wait.
func (e *Engine) ServePackets(l PacketListener) {
	buf := make([]byte, maxDatagram)
	e.listen(l, func() error {
		n, f, err := l.Receive(buf)
		if err == nil {
			e.Datagram(f, buf[:n], l)
		}
		return err
	})
}

// listen starts a goroutine that serves a listener: see receive.
func (e *Engine) listen(l io.Closer, next func() error) {
	e.tasks.listeners.Add(1)
	started := e.tasks.run(func() {
		defer e.tasks.listeners.Add(-1)
		defer l.Close() //nolint:errcheck // an error would change nothing
		e.receive(l, next)
	})
	if !started {
		e.tasks.listeners.Add(-1)
		_ = l.Close() // An error would change nothing.
	}
}

// receive calls next, which waits for a connection or a datagram, until the engine or the listener
// is closed. It counts other errors of the listener, and retries after a delay, which grows with each
// failure in a row.
func (e *Engine) receive(l io.Closer, next func() error) {
	if !e.tasks.track(l) {
		return
	}
	defer e.tasks.untrack(l)
	for delay := time.Duration(0); ; {
		err := next()
		switch {
		case err == nil, concernsOne(err):
			delay = 0
		case e.tasks.ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return
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
