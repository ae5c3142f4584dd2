package engine

import (
	"sync"
	"time"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/proxy"
)

// service is the state of a service port that is not in the snapshot: the round of its endpoints, and session affinity.
type service struct {
	engine  *Engine
	balance balance

	mu     sync.Mutex
	tables [2]*affinity.Table // by pool; nil without affinity
}

// configure applies the session affinity of a port, nil if it was removed, and forgets the endpoints that a former
// state of the port had and the port has not.
func (s *service) configure(from, to *proxy.ServicePort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pool := range s.tables {
		switch table := s.tables[pool]; {
		case to == nil || !to.Affinity.Enabled():
			if table != nil {
				table.SetTimeout(0)
			}
			s.tables[pool] = nil
		case table == nil:
			s.tables[pool] = s.engine.affinity.NewTable(to.Affinity.Timeout, 0)
		default:
			table.SetTimeout(to.Affinity.Timeout)
		}
	}
	if s.tables[0] == nil {
		return
	}
	have := to.Servers()
	for a := range from.Servers() {
		if _, has := have[a]; !has {
			for _, table := range s.tables {
				table.Remove(a)
			}
		}
	}
}

// table returns the affinity table of a pool; nil without session affinity.
func (s *service) table(pool proxy.Pool) *affinity.Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tables[pool]
}

// enforceTimeouts closes, at intervals, connections and sessions that have been silent for too long, connections
// whose grace period is over, and sessions that the Services exclude. One goroutine that checks all of them costs less
// than a timer for each connection, and finds stuck writes as well.
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
		now, served := e.now(), e.snapshot()
		for _, c := range e.connections() {
			if c.overdue(now, &t, served) {
				_ = c.Close()
			}
		}
		e.sessions.closeSilent(now - t.Session)
		for _, s := range e.sessions.all() {
			e.follow(s)
		}
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
