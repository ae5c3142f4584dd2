package engine

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
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
	quota  *quota
	mu     sync.RWMutex
	closed bool
	byFlow map[sessionKey]*session
}

// session is a client that sends datagrams to a frontend, and the socket by
// which they get to an endpoint.
type session struct {
	flow     Flow
	service  *service
	endpoint netip.AddrPort
	from     netip.Addr // who makes experiences with the endpoint
	upstream net.Conn
	replier  Replier
	used     atomic.Int64
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
		s.used.Store(int64(e.now()))
		_, err := s.upstream.Write(datagram)
		switch {
		case err == nil || isShortage(err):
			return
		case isFatal(err):
			e.sessions.end(s) // It has just ended: this one begins another.
		default:
			e.refused(s) // an earlier one: this one goes to another endpoint
		}
	}
}

// refused ends a session whose endpoint does not take datagrams.
func (e *Engine) refused(s *session) {
	e.suspects.accuse(suspectKey{s.endpoint, v1.ProtocolUDP}, s.from)
	e.sessions.end(s)
}

// session gives the session of a flow, a new one if there is none; nil if there
// cannot be one.
func (e *Engine) session(f Flow, r Replier) *session {
	e.sessions.mu.RLock()
	s := e.sessions.byFlow[sessionKey{f.Client, f.Frontend}]
	e.sessions.mu.RUnlock()
	if s != nil {
		return s
	}
	d := e.decide(f)
	if d.action == proxy.Reject && e.config.Hooks.FirstConnection != nil {
		e.config.Hooks.FirstConnection(d.flow, d.port.Name)
	}
	client := clientKey(d.flow.Client.Addr(), d.flow.Origin)
	switch {
	case d.action != proxy.Forward:
		e.counts.denied.Add(1)
		return nil
	case !e.sessions.quota.takeOne(client):
		e.counts.crowded.Add(1)
		return nil
	}
	leave := func() { e.sessions.quota.give(client) }
	if s = e.begin(f, &d, r, leave); s == nil {
		leave()
	}
	return s
}

// begin makes a session, and has leave called when it ends; nil if there cannot be
// one.
func (e *Engine) begin(f Flow, d *decision, r Replier, leave func()) *session {
	conn, endpoint, err := e.connect(e.tasks.ctx, d)
	if err != nil {
		e.counts.lost(err)
		return nil
	}
	s := &session{flow: f, service: d.service, endpoint: endpoint.Addr, from: d.source(endpoint), upstream: conn, replier: r}
	s.used.Store(int64(e.now()))
	if !e.open(s, leave) {
		_ = conn.Close() // Nobody has used it.
		return nil
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

// open makes a session known, and has answers carried back.
func (e *Engine) open(s *session, leave func()) bool {
	e.sessions.mu.Lock()
	defer e.sessions.mu.Unlock()
	if _, taken := e.sessions.byFlow[s.key()]; taken || e.sessions.closed {
		return false
	}
	e.counts.sessions.Add(1)
	started := e.tasks.run(func() {
		defer leave()
		defer e.counts.sessions.Add(-1)
		e.answers(s)
	})
	if !started {
		e.counts.sessions.Add(-1)
		return false
	}
	e.sessions.byFlow[s.key()] = s
	return true
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
				e.suspects.acquit(suspectKey{s.endpoint, v1.ProtocolUDP}, s.from)
			}
			s.used.Store(int64(e.now()))
			err = s.replier.Reply(s.flow, (*buf)[:n])
			if err != nil && !isFatal(err) {
				err = nil // This answer is lost, as datagrams are.
			}
		}
		e.buffers.large.put(buf)
		if err != nil && !errors.Is(err, net.ErrClosed) {
			e.refused(s)
			return
		}
		if err != nil {
			e.sessions.end(s)
			return
		}
	}
}

// isFatal reports whether nothing more can be sent.
func isFatal(err error) bool { return errors.Is(err, net.ErrClosed) }

// end closes a session, if nobody else has.
func (t *sessions) end(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byFlow[s.key()] == s {
		delete(t.byFlow, s.key())
	}
	_ = s.upstream.Close() // There is nobody to tell.
}

// endAll ends the sessions of which something is true.
func (t *sessions) endAll(which func(*session) bool) {
	t.mu.RLock()
	var all []*session
	for _, s := range t.byFlow {
		if which(s) {
			all = append(all, s)
		}
	}
	t.mu.RUnlock()
	for _, s := range all {
		t.end(s)
	}
}

// lose ends the sessions of a service with endpoints that are no more.
func (t *sessions) lose(of *service, lost map[netip.AddrPort]struct{}) {
	t.endAll(func(s *session) bool {
		_, is := lost[s.endpoint]
		return is && s.service == of
	})
}

// closeSilent ends the sessions that were used last before a time.
func (t *sessions) closeSilent(before time.Duration) {
	t.endAll(func(s *session) bool { return s.used.Load() <= int64(before) })
}

// shut lets no more sessions begin.
func (t *sessions) shut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}
