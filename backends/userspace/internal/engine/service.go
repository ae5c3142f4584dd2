package engine

import (
	"net/netip"
	"sync"
	"time"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/proxy"
)

// service is the state of a service port that is not in the snapshot: session affinity and
// connections.
type service struct {
	engine  *Engine
	balance balance

	mu          sync.Mutex
	tables      [2]*affinity.Table // by pool; nil without affinity
	connections map[*connection]struct{}
}

// configure applies the session affinity of a port to the service; nil if it was removed.
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
			s.tables[pool] = s.engine.affinity.NewTable(p.Affinity.Timeout, 0)
		default:
			table.SetTimeout(p.Affinity.Timeout)
		}
	}
}

// table returns the affinity table of a pool; nil without session affinity.
func (s *service) table(pool proxy.Pool) *affinity.Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tables[pool]
}

// removeEndpoints removes the endpoints that are in had and not in have.
func (s *service) removeEndpoints(had, have map[netip.AddrPort]struct{}) {
	lost := map[netip.AddrPort]struct{}{}
	for a := range had {
		if _, kept := have[a]; !kept {
			lost[a] = struct{}{}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range lost {
		for _, table := range s.tables {
			if table != nil {
				table.Remove(a)
			}
		}
	}
	s.drain(lost, have)
}

// drain starts the grace period of connections to lost endpoints, and cancels it for those
// whose endpoint has returned.
func (s *service) drain(lost, have map[netip.AddrPort]struct{}) {
	end := int64(s.engine.now() + s.engine.config.Timeouts.Drain)
	for c := range s.connections {
		if _, is := lost[c.endpoint]; is {
			c.end.CompareAndSwap(0, end)
		} else if _, is := have[c.endpoint]; is {
			c.end.Store(0)
		}
	}
}

// register adds a connection to its service. If the endpoint or the service was removed in
// the meantime, the connection gets the grace period, too. The lock of the engine excludes an
// Apply between the check and the registration.
func (e *Engine) register(c *connection, d *decision) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	s := d.service
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections[c] = struct{}{}
	if e.services[d.port.Name] != s || !e.serves(d, c.endpoint) {
		c.end.Store(int64(e.now() + e.config.Timeouts.Drain))
	}
}

// unregister removes a connection that has ended.
func (s *service) unregister(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.connections, c)
}

// enforceTimeouts closes, at intervals, connections and sessions that have been silent for
// too long, and connections whose grace period is over. One goroutine that checks all of them
// costs less than a timer for each connection, and finds stuck writes as well.
func (e *Engine) enforceTimeouts() {
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
		for _, c := range e.connections() {
			if c.overdue(now, &t) {
				_ = c.Close()
			}
		}
		e.sessions.closeSilent(now - t.Session)
		e.failures.expire(time.Now())
		e.affinity.Expire()
	}
}

// connections returns all connections, also those of removed Services.
func (e *Engine) connections() []*connection {
	e.tasks.mu.Lock()
	defer e.tasks.mu.Unlock()
	var all []*connection
	for closer := range e.tasks.closers {
		if c, ok := closer.(*connection); ok {
			all = append(all, c)
		}
	}
	return all
}
