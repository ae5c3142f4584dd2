package engine

import (
	"net/netip"
	"sync"
	"time"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/proxy"
)

// service is what the engine remembers of a service port: who sticks to which
// endpoint, and which connections there are.
type service struct {
	engine *Engine

	mu     sync.Mutex
	tables [2]*affinity.Table // by pool; nil without affinity
	links  map[*link]struct{}
}

// configure brings the service to what the port says now; nil if it is gone.
func (s *service) configure(p *proxy.ServicePort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pool := range s.tables {
		switch table := s.tables[pool]; {
		case p == nil || !p.Affinity.Enabled():
			if table != nil {
				table.SetTimeout(0)
			}
			s.tables[pool] = nil
		case table == nil:
			s.tables[pool] = s.engine.affinity.NewTable(p.Affinity.Timeout, s.engine.config.AffinityClients)
		default:
			table.SetTimeout(p.Affinity.Timeout)
		}
	}
}

// table gives the affinity of a pool; nil where there is none.
func (s *service) table(pool proxy.Pool) *affinity.Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tables[pool]
}

// lose lets go of the endpoints that are in had and not in have.
func (s *service) lose(had, have map[netip.AddrPort]struct{}) {
	lost := map[netip.AddrPort]struct{}{}
	for a := range had {
		if _, kept := have[a]; !kept {
			lost[a] = struct{}{}
		}
	}
	s.mu.Lock()
	for a := range lost {
		for _, table := range s.tables {
			if table != nil {
				table.Remove(a)
			}
		}
	}
	s.drain(lost, have)
	s.mu.Unlock()
	if len(lost) > 0 {
		s.engine.sessions.lose(s, lost)
	}
}

// drain gives connections to lost endpoints their last date, and takes it back
// from those whose endpoint has returned.
func (s *service) drain(lost, have map[netip.AddrPort]struct{}) {
	end := int64(s.engine.now() + s.engine.config.Timeouts.Drain)
	for l := range s.links {
		if _, is := lost[l.endpoint]; is {
			l.end.CompareAndSwap(0, end)
		} else if _, is := have[l.endpoint]; is {
			l.end.Store(0)
		}
	}
}

// register counts a connection among those of its service. One that comes too
// late, after its endpoint or the service itself has gone, gets the grace period all
// the same. No Apply comes in between, which would know better.
func (e *Engine) register(l *link, d *decision) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	s := d.service
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[l] = struct{}{}
	if e.services[d.port.Name] != s || !e.has(d, l.endpoint) {
		l.end.Store(int64(e.now() + e.config.Timeouts.Drain))
	}
}

func (s *service) unregister(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, l)
}

// keepHouse closes, now and then, what has been silent for too long and what has
// had its grace period. One goroutine that looks at everything costs less than a
// timer for each connection, and a write that is stuck is found as well.
func (e *Engine) keepHouse() {
	t := e.config.Timeouts
	every := min(t.Idle, t.HalfClosed, t.Drain, t.Session, 40*time.Second) / 4
	ticker := time.NewTicker(max(every, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-e.tasks.ctx.Done():
			return
		case <-ticker.C:
		}
		now := e.now()
		for _, l := range e.links() {
			if l.overdue(now, &t) {
				l.abort()
			}
		}
		e.sessions.closeSilent(now - t.Session)
		e.suspects.forget(time.Now())
		e.affinity.Expire()
	}
}

// links gives all connections, also those of Services that are gone.
func (e *Engine) links() []*link {
	e.tasks.mu.Lock()
	defer e.tasks.mu.Unlock()
	var all []*link
	for c := range e.tasks.closers {
		if l, ok := c.(*link); ok {
			all = append(all, l)
		}
	}
	return all
}
