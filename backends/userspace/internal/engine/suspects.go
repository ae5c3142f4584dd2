package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
)

// suspects are endpoints that could not be reached a short while ago.
type suspects struct {
	patience time.Duration
	count    atomic.Int64 // of until, to be looked at without the lock

	mu    sync.Mutex
	until map[suspectKey]time.Time
}

type suspectKey struct {
	addr     netip.AddrPort
	protocol v1.Protocol
}

// accuse makes an endpoint come last for a while.
func (s *suspects) accuse(k suspectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = map[suspectKey]time.Time{}
	}
	s.until[k] = time.Now().Add(s.patience)
	s.count.Store(int64(len(s.until)))
}

// acquit is called for an endpoint that was reached.
func (s *suspects) acquit(k suspectKey) {
	if s.count.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.until, k)
	s.count.Store(int64(len(s.until)))
}

// avoid reports whether an endpoint should not be tried now. Of those who ask
// after the time of a suspect is up only the first one is told to try; the rest
// wait for what becomes of that.
func (s *suspects) avoid(k suspectKey) bool {
	if s.count.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	until, is := s.until[k]
	if !is {
		return false
	}
	now := time.Now()
	if now.Before(until) {
		return true
	}
	s.until[k] = now.Add(s.patience)
	return false
}

// forget lets go of those that nobody has asked for in a long time.
func (s *suspects) forget(now time.Time) {
	if s.count.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, until := range s.until {
		if now.Sub(until) > 10*s.patience {
			delete(s.until, k)
		}
	}
	s.count.Store(int64(len(s.until)))
}

// is reports whether an endpoint is one of them.
func (s *suspects) is(k suspectKey) bool {
	if s.count.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.until[k]
	return is
}
