package engine

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// maxDatagram is more than any datagram holds.
const maxDatagram = 64 << 10

// Replier sends answers to clients.
type Replier interface {
	// Reply sends a datagram to the client of a flow, in the name of the
	// frontend. It may be called from several goroutines at once, and does
	// not keep the datagram.
	Reply(f Flow, datagram []byte) error
}

type sessionKey struct{ client, frontend netip.AddrPort }

// sessions are all sessions of an engine.
type sessions struct {
	limit int
	// sockets counts those that are open: of sessions, of such that are about to
	// begin, and of such that are about to end.
	sockets bound

	mu     sync.RWMutex
	byFlow map[sessionKey]*session
	idle   idleness
}

func (t *sessions) begin(limit int) {
	t.limit, t.byFlow, t.idle = limit, map[sessionKey]*session{}, newIdleness()
	t.sockets.limit = int64(limit + max(1, limit/endingShare))
}

// endingShare says how many sessions, as a part of all, may be about to end, beside
// those that there are.
const endingShare = 8

// session is a client that sends datagrams to a frontend, and the socket by
// which they get to an endpoint.
type session struct {
	flow     Flow
	service  *service
	holder   holder
	endpoint netip.AddrPort
	sees     view // of the endpoint
	upstream net.Conn
	send     func(datagram []byte) error // waits for nothing
	replier  Replier
	used     atomic.Int64
	places   [3]*place // among all, those of the client, and those of the service port
}

// suspect gives what the endpoint would be suspected as, and by whom.
func (s *session) suspect() (k suspectKey, by netip.Addr) {
	return suspectKey{s.endpoint, v1.ProtocolUDP, s.sees.link}, s.sees.source
}

func (s *session) key() sessionKey { return sessionKey{s.flow.Client, s.flow.Frontend} }

// Datagram takes a datagram of a client to an endpoint. It waits for nothing but
// the hooks, and does not keep the datagram. One that cannot be delivered is
// lost, as datagrams are.
func (e *Engine) Datagram(f Flow, datagram []byte, r Replier) {
	for range 2 {
		s := e.session(f, r)
		if s == nil {
			return
		}
		err := s.send(datagram)
		switch {
		case err == nil || isShortage(err) || errors.Is(err, syscall.EAGAIN):
			return
		case isFatal(err):
			e.sessions.end(s) // It has just ended: this one begins another.
		case isTooLarge(err): // an earlier one, perhaps: this one tries again
		default:
			e.refused(s) // an earlier one: this one goes to another endpoint
		}
	}
}

// isTooLarge reports whether a datagram was too large for the way to the endpoint,
// which says nothing of the endpoint.
func isTooLarge(err error) bool { return errors.Is(err, syscall.EMSGSIZE) }

// refused ends a session whose endpoint does not take datagrams.
func (e *Engine) refused(s *session) {
	e.suspects.accuse(s.suspect())
	e.sessions.end(s)
}

// session gives the session of a flow, a new one if there is none; nil if there
// cannot be one.
func (e *Engine) session(f Flow, r Replier) *session {
	if s := e.sessions.use(f, e.now()); s != nil {
		return s
	}
	d := e.decide(f)
	if d.action == proxy.Reject && e.config.Hooks.FirstConnection != nil {
		e.config.Hooks.FirstConnection(d.flow, d.port.Name)
	}
	if d.action != proxy.Forward {
		e.counts.denied.Add(1)
		return nil
	}
	if !e.sessions.sockets.take() {
		e.counts.crowded.Add(1)
		return nil
	}
	if e.sessions.makeRoom(d.holder()) {
		e.counts.crowded.Add(1)
	}
	return e.begin(f, &d, r, sync.OnceFunc(e.sessions.sockets.give))
}

// holder says who has a session.
func (d *decision) holder() holder {
	return holder{clientKey(d.flow.Client.Addr(), d.flow.Origin), d.service}
}

// makeRoom ends a session if another one would exceed the limit or the share of the
// holder, and reports whether it has.
func (t *sessions) makeRoom(to holder) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.idle.giving(t.limit, to)
	if s == nil {
		return false
	}
	t.forget(s)
	return true
}

// freePort ends a session of a service port of which the endpoints have no port left for
// another one, and reports whether it has.
func (t *sessions) freePort(to holder) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.idle.givingPort(to)
	if s == nil {
		return false
	}
	t.forget(s)
	return true
}

// begin makes a session, or gives that which somebody else has made of the flow in
// the meantime; nil if there cannot be one. It has leave called at the latest when
// the session ends.
func (e *Engine) begin(f Flow, d *decision, r Replier, leave func()) *session {
	conn, endpoint, err := e.connect(e.tasks.ctx, d)
	if errors.Is(err, ErrNoPort) && e.sessions.freePort(d.holder()) {
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
	if known := e.open(s, leave); known != s {
		leave()
		_ = conn.Close() // Nobody has used it.
		return known
	}
	if !e.serves(d, s.endpoint) || e.isAstray(s) {
		e.sessions.end(s) // Things have changed in the meantime.
	}
	return s
}

// isAstray reports whether the flow of a session is no longer one that its service
// port would take.
func (e *Engine) isAstray(s *session) bool {
	d := e.decide(s.flow)
	return d.action != proxy.Forward || d.service != s.service
}

// open makes a session known, and has answers carried back. It gives the session
// that is known then; nil if there may be none any more.
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
	for heard := false; ; {
		buf, n, err := r.read(e.buffers.large)
		if err == nil {
			if !heard {
				heard = true
				e.suspects.acquit(s.suspect())
			}
			s.used.Store(int64(e.now()))
			err = s.replier.Reply(s.flow, (*buf)[:n])
			if err != nil && !isFatal(err) {
				err = nil // This answer is lost, as datagrams are.
			}
		}
		e.buffers.large.put(buf)
		switch {
		case err == nil || isTooLarge(err):
		case isFatal(err):
			e.sessions.end(s)
			return
		default:
			e.refused(s)
			return
		}
	}
}

// isFatal reports whether nothing more can be sent.
func isFatal(err error) bool { return errors.Is(err, net.ErrClosed) }

// use gives the session of a flow, which is used now; nil if there is none.
func (t *sessions) use(f Flow, now time.Duration) *session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.byFlow[sessionKey{f.Client, f.Frontend}]
	if s != nil {
		s.used.Store(int64(now)) // with the lock, by which closeSilent looks again
	}
	return s
}

// end closes a session, if nobody else has.
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
	_ = s.upstream.Close() // There is nobody to tell.
}

// those gives the sessions of which something is true.
func (t *sessions) those(which func(*session) bool) (all []*session) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, s := range t.byFlow {
		if which(s) {
			all = append(all, s)
		}
	}
	return all
}

// of gives the sessions of a service. It does not look at those of others: clients
// decide how many these are.
func (t *sessions) of(service *service) (all []*session) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if own := t.idle.services[service]; own != nil {
		for _, p := range *own {
			all = append(all, p.session)
		}
	}
	return all
}

// endAll ends all sessions.
func (t *sessions) endAll() {
	for _, s := range t.those(func(*session) bool { return true }) {
		t.end(s)
	}
}

// lose ends the sessions of a service with endpoints that are no more.
func (t *sessions) lose(of *service, lost map[netip.AddrPort]struct{}) {
	for _, s := range t.of(of) {
		if _, is := lost[s.endpoint]; is {
			t.end(s)
		}
	}
}

// closeSilent ends the sessions that were used last before a time. A datagram that
// finds its session before it is ended keeps it: there may be an answer.
func (t *sessions) closeSilent(before time.Duration) {
	silent := func(s *session) bool { return s.used.Load() <= int64(before) }
	for _, s := range t.those(silent) {
		t.mu.Lock()
		if silent(s) {
			t.forget(s)
		}
		t.mu.Unlock()
	}
}
