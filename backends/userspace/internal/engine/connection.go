package engine

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// connection is a connection of a client, with the connection to its endpoint.
type connection struct {
	// used is when something was sent last, on the engine's clock.
	used atomic.Int64
	// half says that one side has sent everything.
	half     atomic.Bool
	relaying atomic.Bool

	mu       sync.Mutex
	closed   bool
	client   net.Conn
	upstream net.Conn // nil until there is one

	// endpoint is that of upstream, and port the last state of the service port that had the endpoint. end is when
	// the grace period is over, zero before it begins. They are set before relaying, then used by overdue alone.
	endpoint netip.AddrPort
	port     *proxy.ServicePort
	end      time.Duration
}

// attach adds the connection to the endpoint. If the client's connection was closed in the
// meantime, it closes the endpoint's, too, and reports false.
func (c *connection) attach(upstream net.Conn, endpoint netip.AddrPort, port *proxy.ServicePort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = upstream.Close() // It was not used.
		return false
	}
	c.upstream, c.endpoint, c.port = upstream, endpoint, port
	return true
}

func (c *connection) touch(now time.Duration) { c.used.Store(int64(now)) }

// overdue reports whether the connection has been silent for too long, or its grace period is over. The period begins
// when overdue finds first that the Services have not the endpoint, and is cancelled if the endpoint returns.
func (c *connection) overdue(now time.Duration, t *Timeouts, served proxy.Snapshot) bool {
	if !c.relaying.Load() {
		return false // It is being dialed, which has timeouts of its own.
	}
	switch p, _ := served.Get(c.port.Name); {
	case p != nil && (p == c.port || has(p, c.endpoint)):
		c.port, c.end = p, 0
	case c.end == 0:
		c.end = now + t.Drain
	}
	timeout := t.Idle
	if c.half.Load() {
		timeout = min(t.HalfClosed, t.Idle)
	}
	return now-time.Duration(c.used.Load()) >= timeout || c.end != 0 && now >= c.end
}

// has reports whether a service port has an endpoint, which may be draining.
func has(p *proxy.ServicePort, addr netip.AddrPort) bool {
	return find(p.Cluster, addr) != nil || find(p.Local, addr) != nil || find(p.Draining, addr) != nil
}

// finish closes both sides, as each has sent everything.
func (c *connection) finish() { c.shut(func(side net.Conn) { _ = side.Close() }) }

// Close resets both sides, so that client and endpoint notice that data may be missing.
func (c *connection) Close() error {
	c.shut(reset)
	return nil
}

func (c *connection) shut(how func(net.Conn)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	how(c.client)
	if c.upstream != nil {
		how(c.upstream)
	}
}

// reset closes a connection so that the peer notices that it was not orderly.
func reset(c net.Conn) {
	if t, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = t.SetLinger(0) // After an error, the connection is closed without a reset.
	}
	_ = c.Close() // An error would change nothing.
}

// relay carries data in both directions until both sides have sent everything, or one of
// them is lost.
func (e *Engine) relay(c *connection) {
	var wg sync.WaitGroup
	wg.Go(func() { e.pump(c, c.client, c.upstream) })
	e.pump(c, c.upstream, c.client)
	wg.Wait()
	c.finish()
}

// pump carries one direction.
func (e *Engine) pump(c *connection, to, from net.Conn) {
	err := e.copy(c, to, from)
	if err == nil {
		err = e.closeWrite(c, to)
	}
	if err != nil {
		_ = c.Close()
	}
}

// used records that n bytes were received that are for one side.
func (e *Engine) used(c *connection, to net.Conn, n int64) {
	way := toEndpoint
	if to == c.client {
		way = toClient
	}
	e.counts.bytes[way].Add(uint64(n)) //nolint:gosec // never negative
	c.touch(e.now())
}

// closeWrite half-closes one side, since the other one has sent everything.
func (e *Engine) closeWrite(c *connection, to net.Conn) error {
	c.half.Store(true)
	c.touch(e.now())
	if w, ok := to.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	c.finish() // It cannot be half-closed.
	return nil
}

// copy carries data until from has sent everything. Small pieces pass through a buffer, which
// is held only while there is something to read: [io.Copy] alone would hold a pipe for each
// direction of a silent connection. After a piece that fills the buffer more will follow, and
// splice moves it inside the kernel.
func (e *Engine) copy(c *connection, to, from net.Conn) error {
	r := newReader(from)
	for {
		buf, n, err := r.read(e.buffers.small)
		if n > 0 {
			_, werr := to.Write((*buf)[:n])
			err = errors.Join(err, werr)
			e.used(c, to, int64(n))
		}
		full := buf != nil && n == len(*buf)
		e.buffers.small.Put(buf)
		if err == nil && full {
			err = e.splice(c, to, from)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

const (
	// splicePiece is how much splice moves at a time, before it counts the bytes.
	splicePiece = 4 << 20
	// splicePause is for how long splice waits for more. It holds a pipe, which a silent
	// connection should not hold.
	splicePause = 200 * time.Millisecond
)

// splice has the kernel move data while more keeps arriving: on Linux, [io.Copy] does so between
// two TCP connections. It does nothing for other connections, or at the limit of pipes.
func (e *Engine) splice(c *connection, to, from net.Conn) error {
	source, is := from.(*net.TCPConn)
	if _, both := to.(*net.TCPConn); !is || !both || !e.tasks.pipes.take() {
		return nil // The caller copies the data through memory.
	}
	defer e.tasks.pipes.give()
	defer source.SetReadDeadline(time.Time{}) //nolint:errcheck // the next read returns the error
	for {
		if err := source.SetReadDeadline(time.Now().Add(splicePause)); err != nil {
			return err
		}
		n, err := io.CopyN(to, source, splicePiece)
		if n > 0 {
			e.used(c, to, n)
		}
		switch paused := errors.Is(err, os.ErrDeadlineExceeded); {
		case paused && n == 0, errors.Is(err, io.EOF):
			return nil // The next read tells the end from urgent data, at which splice stops too.
		case err != nil && !paused:
			return err
		}
	}
}
