package engine

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/proxy"
)

// maxDatagram is larger than any datagram.
const maxDatagram = 64 << 10

// Replier sends answers to clients.
type Replier interface {
	// Reply sends a datagram to the client of a flow, from the frontend's address. It may
	// be called from several goroutines at once, and does not keep the datagram.
	Reply(f Flow, datagram []byte) error
}

type sessionKey struct{ client, frontend netip.AddrPort }

// sessions are all sessions of an engine.
type sessions struct {
	limit int
	// sockets counts the open sockets: of sessions, of sessions about to begin, and of
	// sessions about to end.
	sockets bound

	mu     sync.RWMutex
	byFlow map[sessionKey]*session
	idle   idleIndex
}

func (t *sessions) begin(limit int) {
	t.limit, t.byFlow, t.idle = limit, map[sessionKey]*session{}, idleIndex{}
	t.sockets = make(bound, limit+max(1, limit/endingShare))
}

// endingShare is the divisor of the limit of sessions that gives how many more may be about
// to end.
const endingShare = 8

// session is the datagrams of one client to one frontend, and the socket that sends them to an
// endpoint.
type session struct {
	flow     Flow
	service  *service
	holder   holder
	endpoint netip.AddrPort
	sees     view // what the endpoint sees
	upstream net.Conn
	send     func(datagram []byte) error // does not wait
	replier  Replier
	used     atomic.Int64
	// follows is the number of the Apply that the session follows.
	follows atomic.Uint64
	entries [3]*idleEntry // in the groups of the holder
}

// failureKey returns the key and the source under which a failure of the endpoint is recorded.
func (s *session) failureKey() (k failureKey, from netip.Addr) {
	return failureKey{s.endpoint, v1.ProtocolUDP, s.sees.link}, s.sees.source
}

func (s *session) key() sessionKey { return sessionKey{s.flow.Client, s.flow.Frontend} }

// Datagram forwards a datagram of a client to an endpoint. It waits for nothing but the
// hooks, and does not keep the datagram. A datagram that cannot be sent is lost.
func (e *Engine) Datagram(f Flow, datagram []byte, r Replier) {
	for range 2 {
		s := e.session(f, r)
		if s == nil {
			return
		}
		if !e.follow(s) {
			continue
		}
		err := s.send(datagram)
		switch {
		case err == nil:
			e.counts.bytes[toEndpoint].Add(uint64(len(datagram)))
			return
		case isShortage(err) || neterr.Of(err) == neterr.Full:
			return
		case isFatal(err):
			e.sessions.end(s) // The session has just ended: the next attempt begins another.
		case isTooLarge(err): // perhaps the error of an earlier datagram: try again
		default:
			e.refused(s) // the error of an earlier datagram: try another endpoint
		}
	}
}

// isTooLarge reports whether a datagram was too large for the path to the endpoint. That is
// no failure of the endpoint.
func isTooLarge(err error) bool { return neterr.Of(err) == neterr.TooLarge }

// refused ends a session whose endpoint refuses datagrams.
func (e *Engine) refused(s *session) {
	e.failures.recordFailure(s.failureKey())
	e.sessions.end(s)
}

// session returns the session of a flow, a new one if there is none; nil if none can be
// opened.
func (e *Engine) session(f Flow, r Replier) *session {
	if s := e.sessions.use(f, e.now()); s != nil {
		return s
	}
	d := e.decide(f)
	if d.route.Action == proxy.Reject && e.config.Hooks.FirstConnection != nil {
		e.config.Hooks.FirstConnection(d.flow, d.port.Name)
	}
	if d.route.Action != proxy.Forward {
		e.counts.denied.Add(1)
		return nil
	}
	if !e.sessions.sockets.take() {
		e.counts.crowded.Add(1)
		return nil
	}
	if e.sessions.evict(func(i idleIndex) *session { return i.evict(e.sessions.limit, d.holder()) }) {
		e.counts.crowded.Add(1)
	}
	return e.begin(f, &d, r, sync.OnceFunc(e.sessions.sockets.give))
}

// holder returns what a session of the decision counts for.
func (d *decision) holder() holder {
	return holder{clientKey(d.flow.Client.Addr(), d.flow.Origin), d.service}
}

// evict ends the session that a function chooses, and reports whether it has chosen one.
func (t *sessions) evict(choose func(idleIndex) *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := choose(t.idle)
	if s == nil {
		return false
	}
	t.forget(s)
	return true
}

// begin opens a session, or returns the one that another goroutine has opened for the flow in
// the meantime; nil if none can be opened. It has leave called when the session ends, or
// before it returns if it opens none.
func (e *Engine) begin(f Flow, d *decision, r Replier, leave func()) *session {
	conn, endpoint, err := e.connect(e.tasks.ctx, d)
	if errors.Is(err, ErrNoPort) && e.sessions.evict(func(i idleIndex) *session { return i.evictForPort(d.holder()) }) {
		e.counts.crowded.Add(1)
		conn, endpoint, err = e.connect(e.tasks.ctx, d)
	}
	if err != nil {
		leave()
		e.counts.lost(err)
		return nil
	}
	s := &session{
		flow: f, service: d.service, holder: d.holder(), endpoint: endpoint.Addr, sees: *d.view(endpoint),
		upstream: conn, send: sendNow(conn), replier: r,
	}
	s.used.Store(int64(e.now()))
	known := e.open(s, leave)
	if known != s {
		leave()
		_ = conn.Close() // It was not used.
	}
	return known
}

// follow ends a session, and reports false, if its flow is denied, belongs to another service port, or may not go on
// to the endpoint. That can only be after an Apply.
func (e *Engine) follow(s *session) bool {
	applies := e.applies.Load()
	if s.follows.Load() == applies {
		return true
	}
	d := e.decide(s.flow)
	if d.service != s.service || find(d.endpoints, s.endpoint) == nil && !d.drains(s.endpoint) {
		e.sessions.end(s)
		return false
	}
	s.follows.Store(applies)
	return true
}

// drains reports whether existing flows may go on to an endpoint, although new ones do not get it.
func (d *decision) drains(addr netip.AddrPort) bool {
	if d.port == nil {
		return false
	}
	for e := range d.port.DrainingOf(d.route) {
		if e.Addr == addr {
			return true
		}
	}
	return false
}

// open adds a session, and starts to carry its answers. It returns the session that the flow
// has then; nil if the engine is closed.
func (e *Engine) open(s *session, leave func()) *session {
	e.sessions.mu.Lock()
	defer e.sessions.mu.Unlock()
	if known := e.sessions.byFlow[s.key()]; known != nil {
		return known
	}
	e.counts.sessions.Add(1)
	started := e.tasks.run(func() {
		defer leave()
		defer e.counts.sessions.Add(-1)
		e.answers(s)
	})
	if !started {
		e.counts.sessions.Add(-1)
		return nil
	}
	e.sessions.byFlow[s.key()] = s
	e.sessions.idle.add(s)
	return s
}

// answers carries the datagrams of an endpoint to the client until the session
// ends.
func (e *Engine) answers(s *session) {
	r := newReader(s.upstream)
	for answered := false; ; {
		buf, n, err := r.read(e.buffers.large)
		if err == nil {
			if !answered {
				answered = true
				e.failures.recordSuccess(s.failureKey())
			}
			err = e.answer(s, (*buf)[:n])
		}
		e.buffers.large.Put(buf)
		switch {
		case err == nil || isTooLarge(err):
		case isFatal(err) || isShortage(err):
			e.sessions.end(s)
			return
		default:
			e.refused(s)
			return
		}
	}
}

// answer carries one datagram of an endpoint to the client.
func (e *Engine) answer(s *session, datagram []byte) error {
	if !e.follow(s) {
		return net.ErrClosed
	}
	s.used.Store(int64(e.now()))
	err := s.replier.Reply(s.flow, datagram)
	switch {
	case err == nil:
		e.counts.bytes[toClient].Add(uint64(len(datagram)))
	case !isFatal(err):
		err = nil // This answer is lost.
	}
	return err
}

// isFatal reports whether the socket is closed, so that nothing more can be sent.
func isFatal(err error) bool { return errors.Is(err, net.ErrClosed) }

// use returns the session of a flow, and marks it as used now; nil if there is none.
func (t *sessions) use(f Flow, now time.Duration) *session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.byFlow[sessionKey{f.Client, f.Frontend}]
	if s != nil {
		s.used.Store(int64(now)) // with the lock: closeSilent checks it again with the lock
	}
	return s
}

// end closes a session, unless it is closed.
func (t *sessions) end(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(s)
}

// forget removes a session and closes its socket. It requires t.mu.
func (t *sessions) forget(s *session) {
	if t.byFlow[s.key()] == s {
		delete(t.byFlow, s.key())
		t.idle.remove(s)
	}
	_ = s.upstream.Close() // An error would change nothing.
}

// all returns the sessions.
func (t *sessions) all() []*session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.byFlow))
}

// endAll ends all sessions.
func (t *sessions) endAll() {
	for _, s := range t.all() {
		t.end(s)
	}
}

// closeSilent ends the sessions that were last used before a time. A datagram that finds its
// session before that keeps it open: there may be an answer.
func (t *sessions) closeSilent(before time.Duration) {
	isSilent := func(s *session) bool { return s.used.Load() <= int64(before) }
	for _, s := range t.all() {
		if !isSilent(s) {
			continue
		}
		t.mu.Lock()
		if isSilent(s) {
			t.forget(s)
		}
		t.mu.Unlock()
	}
}
