package engine

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine/tcpconn"
)

// connection is a connection of a client, with the connection to its endpoint.
type connection struct {
	// used is when something was sent last, end when the connection must be closed
	// (0: never), both on the engine's clock.
	used, end atomic.Int64
	// half says that one side has sent everything.
	half     atomic.Bool
	relaying atomic.Bool

	mu       sync.Mutex
	closed   bool
	client   net.Conn
	upstream net.Conn // nil until there is one
	endpoint netip.AddrPort
}

// attach adds the connection to the endpoint. If the client's connection was closed in the
// meantime, it closes the endpoint's, too, and reports false.
func (c *connection) attach(upstream net.Conn, endpoint netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = upstream.Close() // It was not used.
		return false
	}
	c.upstream, c.endpoint = upstream, endpoint
	return true
}

func (c *connection) touch(now time.Duration) { c.used.Store(int64(now)) }

// overdue reports whether the connection has been silent for too long, or its grace period is
// over.
func (c *connection) overdue(now time.Duration, t *Timeouts) bool {
	if !c.relaying.Load() {
		return false // It is being dialed, which has timeouts of its own.
	}
	timeout := t.Idle
	if c.half.Load() {
		timeout = min(t.HalfClosed, t.Idle)
	}
	end := c.end.Load()
	return now-time.Duration(c.used.Load()) >= timeout || end != 0 && int64(now) >= end
}

// Close closes both sides.
func (c *connection) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	err := c.client.Close()
	if c.upstream != nil {
		err = errors.Join(err, c.upstream.Close())
	}
	return err
}

// abort resets both sides, so that client and endpoint notice that data may be missing.
func (c *connection) abort() {
	c.mu.Lock()
	resetOnClose(c.client)
	resetOnClose(c.upstream)
	c.mu.Unlock()
	_ = c.Close() // An error would change nothing.
}

// resetOnClose has a connection reset when it is closed.
func resetOnClose(c net.Conn) {
	if t, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = t.SetLinger(0) // After an error, the connection is closed without a reset.
	}
}

// reset closes a connection that is not served.
func reset(c net.Conn) {
	resetOnClose(c)
	_ = c.Close() // An error would change nothing.
}

// relay carries data in both directions until both sides have sent everything, or one of
// them is lost.
func (e *Engine) relay(c *connection) {
	d := [2]tcpconn.Direction{{From: c.client, To: c.upstream}, {From: c.upstream, To: c.client}}
	if err := tcpconn.Exchange(&d, e.buffers.small, relayed{e, c}); err != nil {
		c.abort()
		return
	}
	var wg sync.WaitGroup
	if !d[1].Ended {
		wg.Go(func() { e.pump(c, &d[1]) })
	}
	if !d[0].Ended {
		e.pump(c, &d[0])
	}
	wg.Wait()
	_ = c.Close() // Both sides have sent everything.
}

// relayed is a connection whose data is relayed. It implements [tcpconn.Owner].
type relayed struct {
	engine *Engine
	link   *connection
}

// Used implements [tcpconn.Owner].
func (r relayed) Used(to net.Conn, n int) {
	way := toEndpoint
	if to == r.link.client {
		way = toClient
	}
	r.engine.counts.bytes[way].Add(uint64(n)) //nolint:gosec // never negative
	r.link.touch(r.engine.now())
}

// CloseWrite implements [tcpconn.Owner].
func (r relayed) CloseWrite(to net.Conn) error {
	r.link.half.Store(true)
	r.link.touch(r.engine.now())
	if w, ok := to.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	_ = r.link.Close() // It cannot be half-closed.
	return nil
}

// pump carries the rest of one direction.
func (e *Engine) pump(c *connection, d *tcpconn.Direction) {
	err := e.copy(c, d)
	if err == nil {
		err = relayed{e, c}.CloseWrite(d.To)
	}
	if err != nil {
		c.abort()
	}
}

// copy carries data until d.From has sent everything. Small pieces pass through a buffer,
// which is held only while there is something to read. After a piece that fills the buffer
// more will follow, and splice moves it inside the kernel.
func (e *Engine) copy(c *connection, d *tcpconn.Direction) error {
	if d.Buffer != nil {
		_, err := d.To.Write(d.Unsent)
		e.buffers.small.Put(d.Buffer)
		if err != nil {
			return err
		}
	}
	r := newReader(d.From)
	for {
		buf, n, err := r.read(e.buffers.small)
		if n > 0 {
			_, werr := d.To.Write((*buf)[:n])
			err = errors.Join(err, werr)
			relayed{e, c}.Used(d.To, n)
		}
		full := buf != nil && n == len(*buf)
		e.buffers.small.Put(buf)
		if err == nil && full {
			err = e.splice(c, d)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// splice has the kernel move data while more keeps arriving. It does nothing for connections
// that are not of package tcpconn, or at the limit of pipes.
func (e *Engine) splice(c *connection, d *tcpconn.Direction) error {
	s, ok := d.From.(interface {
		Splice(to net.Conn, used func(to net.Conn, n int)) error
	})
	if !ok || !e.tasks.pipes.take() {
		return nil // The caller copies the data through memory.
	}
	defer e.tasks.pipes.give()
	return s.Splice(d.To, relayed{e, c}.Used)
}
