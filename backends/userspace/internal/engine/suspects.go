package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
)

// suspects are endpoints that could not be reached a short while ago.
//
// An endpoint sees the address of the client, so that a failure may concern that client
// alone: a network policy forbids it, or the client discards the answers. So an endpoint
// is at first avoided for the source that could not reach it. When a second source fails,
// and none has succeeded in between, it is avoided for all sources whose answers leave by
// the same link; no single source can prolong that. Sources behind other links are not
// affected: answers to them may take another way.
type suspects struct {
	patience time.Duration
	count    atomic.Int64 // of both, to be looked at without the lock

	mu  sync.Mutex
	own recent[sighting, time.Time] // until when
	all recent[suspectKey, suspicion]
}

// suspectKey is an endpoint as those see it whom it answers by one link.
type suspectKey struct {
	addr     netip.AddrPort
	protocol v1.Protocol
	link     int // what [Hooks].Link gives; 0 for the node's own address
}

// sighting is an endpoint as one source sees it. The source is what [sourceKey]
// gives.
type sighting struct {
	from netip.Addr
	to   suspectKey
}

// suspicion is what is known of an endpoint that somebody could not reach.
type suspicion struct {
	by     netip.Addr // the last who failed
	shared bool       // another one had failed before
	until  time.Time  // of the failure, and of the try that is under way
}

// maxSuspects bounds each of both kinds.
const maxSuspects = 16_384

func newSuspects(patience time.Duration) *suspects {
	s := &suspects{patience: patience}
	s.own.limit, s.all.limit = maxSuspects, maxSuspects
	return s
}

// accuse records that a source could not reach an endpoint. The endpoint comes last for that
// source for a while, and for all sources of the link if another one has failed, too.
func (s *suspects) accuse(k suspectKey, from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.own.put(sighting{from, k}, now.Add(s.patience))
	switch c := s.all.get(k); {
	case c == nil || !c.shared && now.After(c.until):
		s.all.put(k, suspicion{by: from, until: now.Add(s.patience)})
	case c.by != from:
		s.all.put(k, suspicion{by: from, shared: true, until: now.Add(s.patience)})
	case c.shared:
		c.until = now // The same source failed again: another one may try now.
	default:
		c.until = now.Add(s.patience)
	}
	s.recount()
}

// acquit records that a source has reached an endpoint.
func (s *suspects) acquit(k suspectKey, from netip.Addr) {
	if s.none() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.remove(sighting{from, k})
	s.all.remove(k)
	s.recount()
}

// avoid reports whether a source should not try an endpoint now. If alone is set, failures
// of other sources do not count. When the time is up, only the first caller is told to
// try; the others avoid the endpoint until the result is known. With UDP a try has no
// result, so that all may try.
func (s *suspects) avoid(k suspectKey, from netip.Addr, alone bool) bool {
	if s.none() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var times []*time.Time
	if until := s.own.get(sighting{from, k}); until != nil {
		times = append(times, until)
	}
	if c := s.all.get(k); c != nil && c.shared && !alone {
		times = append(times, &c.until)
	}
	now := time.Now()
	for _, until := range times {
		if now.Before(*until) {
			return true
		}
	}
	if k.protocol != v1.ProtocolUDP {
		for _, until := range times {
			*until = now.Add(s.patience)
		}
	}
	return false
}

// is reports whether an endpoint has failed lately, whether or not it may be tried now.
func (s *suspects) is(k suspectKey, from netip.Addr) bool {
	if s.none() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all.get(k)
	return c != nil && c.shared || s.own.get(sighting{from, k}) != nil
}

// forget removes entries whose last failure is long ago.
func (s *suspects) forget(now time.Time) {
	if s.none() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.removeWhile(func(until *time.Time) bool { return now.Sub(*until) > 10*s.patience })
	s.all.removeWhile(func(c *suspicion) bool { return now.Sub(c.until) > 10*s.patience })
	s.recount()
}

// none reports whether there is no suspect at all.
func (s *suspects) none() bool { return s.count.Load() == 0 }

func (s *suspects) recount() { s.count.Store(int64(len(s.own.at) + len(s.all.at))) }
