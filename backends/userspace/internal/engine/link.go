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
)

// link is a connection of a client and its twin to an endpoint.
type link struct {
	// used is when something was sent last, end when the link must be over
	// (0: never), both on the engine's clock.
	used, end atomic.Int64
	// half says that one side has nothing more to say.
	half     atomic.Bool
	relaying atomic.Bool

	mu       sync.Mutex
	closed   bool
	client   net.Conn
	upstream net.Conn // nil until there is one
	endpoint netip.AddrPort
}

// attach gives the link its second half; if it was closed in the meantime, it
// closes that too and reports false.
func (l *link) attach(upstream net.Conn, endpoint netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = upstream.Close() // Nobody has used it.
		return false
	}
	l.upstream, l.endpoint = upstream, endpoint
	return true
}

func (l *link) touch(now time.Duration) { l.used.Store(int64(now)) }

// overdue reports whether the link has been silent for too long, or has had its
// grace period.
func (l *link) overdue(now time.Duration, t *Timeouts) bool {
	if !l.relaying.Load() {
		return false // It is being dialled, which has timeouts of its own.
	}
	patience := t.Idle
	if l.half.Load() {
		patience = min(t.HalfClosed, t.Idle)
	}
	end := l.end.Load()
	return now-time.Duration(l.used.Load()) >= patience || end != 0 && int64(now) >= end
}

// Close closes both connections.
func (l *link) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	err := l.client.Close()
	if l.upstream != nil {
		err = errors.Join(err, l.upstream.Close())
	}
	return err
}

// abort closes both connections in a way that tells the other ends that not
// everything was said.
func (l *link) abort() {
	l.mu.Lock()
	unlinger(l.client)
	unlinger(l.upstream)
	l.mu.Unlock()
	_ = l.Close() // There is nobody to tell.
}

// unlinger has the other end of a connection told, when it is closed, that not
// everything was said.
func unlinger(c net.Conn) {
	if t, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = t.SetLinger(0) // It is a courtesy.
	}
}

// reset closes a connection that nobody takes care of.
func reset(c net.Conn) {
	unlinger(c)
	_ = c.Close() // There is nobody to tell.
}

// way is one direction of a connection.
type way struct {
	from, to net.Conn
	over     bool    // from has nothing more to say
	rest     []byte  // what was read, and not written yet
	buf      *[]byte // of which rest is a part; nil without a rest
}

// relay carries data both ways until both sides have said everything, or one of
// them is lost.
func (e *Engine) relay(l *link) {
	ways := [2]way{{from: l.client, to: l.upstream}, {from: l.upstream, to: l.client}}
	if err := e.converse(l, &ways); err != nil {
		l.abort()
		return
	}
	var wg sync.WaitGroup
	if !ways[1].over {
		wg.Go(func() { e.pump(l, &ways[1]) })
	}
	if !ways[0].over {
		e.pump(l, &ways[0])
	}
	wg.Wait()
	_ = l.Close() // Everything has been said.
}

// pump carries data one way.
func (e *Engine) pump(l *link, w *way) {
	err := e.copy(l, w)
	if err == nil {
		err = e.endHalf(l, w.to)
	}
	if err != nil {
		l.abort()
	}
}

// endHalf tells one side that the other one has nothing more to say.
func (e *Engine) endHalf(l *link, to net.Conn) error {
	l.half.Store(true)
	l.touch(e.now())
	if w, ok := to.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	_ = l.Close() // It cannot be closed by halves.
	return nil
}

const (
	// burst is how much goes through the kernel before anybody looks again.
	burst = 4 << 20
	// lull is how long such a transfer may wait for more. It holds kernel
	// memory that a silent connection should not hold.
	lull = 200 * time.Millisecond
)

// copy carries data until from has nothing more to say. What comes in small
// pieces goes through a buffer that is taken only when there is something to
// read; where a piece fills the buffer, more will follow, and the kernel is told
// to move it by itself.
func (e *Engine) copy(l *link, w *way) error {
	if w.buf != nil {
		_, err := w.to.Write(w.rest)
		e.buffers.small.put(w.buf)
		if err != nil {
			return err
		}
	}
	bulk := e.burstOf(l, w.to, w.from)
	r := newReader(w.from)
	for {
		buf, n, err := r.read(e.buffers.small)
		if n > 0 {
			_, werr := w.to.Write((*buf)[:n])
			err = errors.Join(err, werr)
			l.touch(e.now())
		}
		full := buf != nil && n == len(*buf)
		e.buffers.small.put(buf)
		if err == nil && full && bulk != nil {
			err = bulk()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// burstConns gives what moves bulk data between connections of package net; nil
// where nothing does.
func (e *Engine) burstConns(l *link, to, from net.Conn) func() error {
	target, one := to.(*net.TCPConn)
	source, two := from.(*net.TCPConn)
	if !one || !two {
		return nil
	}
	return func() error { return e.burst(l, target, source) }
}

// burst moves bulk data, as long as it keeps coming.
func (e *Engine) burst(l *link, to, from *net.TCPConn) error {
	defer from.SetReadDeadline(time.Time{}) //nolint:errcheck // the next read says what is wrong
	for {
		if err := from.SetReadDeadline(time.Now().Add(lull)); err != nil {
			return err
		}
		n, err := to.ReadFrom(&io.LimitedReader{R: from, N: burst})
		if n > 0 {
			l.touch(e.now())
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && n > 0:
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		case n < burst:
			return io.EOF
		}
	}
}
