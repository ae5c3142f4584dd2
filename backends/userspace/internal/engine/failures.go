package engine

import (
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
)

// failures are endpoints that could not be reached recently.
//
// An endpoint sees the address of the client, so that a failure may concern that client
// alone: a network policy denies it, or the client discards the answers. So an endpoint
// is at first avoided for the source that could not reach it. When a second source fails,
// and none has succeeded in between, it is avoided for all sources to which its answers leave
// by the same link; no single source can prolong that. Sources behind other links are not
// affected: answers to them may take another path.
type failures struct {
	period time.Duration
	count  atomic.Int64 // entries of both maps; can be read without the lock

	mu       sync.Mutex
	bySource map[sourceKey]time.Time // until when the source avoids the endpoint
	byLink   map[failureKey]failure
}

// failureKey is an endpoint, and the link by which its answers leave.
type failureKey struct {
	addr     netip.AddrPort
	protocol v1.Protocol
	link     int // as returned by Config.Link; 0 for the node's own address
}

// sourceKey is an endpoint and a source: a client as returned by [clientKey].
type sourceKey struct {
	from netip.Addr
	to   failureKey
}

// failure is the state of an endpoint that a source could not reach.
type failure struct {
	by     netip.Addr // the last source that failed
	shared bool       // another source had failed before
	until  time.Time  // when an attempt is allowed; beginning one sets it again
}

// maxFailures bounds each of both maps. Beyond it, a new entry replaces any other.
const maxFailures = 16_384

func newFailures(period time.Duration) *failures {
	return &failures{period: period, bySource: map[sourceKey]time.Time{}, byLink: map[failureKey]failure{}}
}

// recordFailure records that a source could not reach an endpoint. For a period, the endpoint
// is tried last for that source, and for all sources of the link if another one has failed, too.
func (f *failures) recordFailure(k failureKey, from netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	next := failure{by: from, until: now.Add(f.period)}
	putBounded(f.bySource, sourceKey{from, k}, next.until)
	last, known := f.byLink[k]
	switch {
	case !known || !last.shared && now.After(last.until):
	case last.by != from:
		next.shared = true
	case last.shared:
		next.shared, next.until = true, now // The same source failed again: any other one may try now.
	}
	putBounded(f.byLink, k, next)
	f.recount()
}

// putBounded sets an entry of a map that has maxFailures entries at most.
func putBounded[K comparable, V any](m map[K]V, k K, v V) {
	if _, known := m[k]; !known && len(m) >= maxFailures {
		for other := range m {
			delete(m, other)
			break
		}
	}
	m[k] = v
}

// recordSuccess records that a source has reached an endpoint.
func (f *failures) recordSuccess(k failureKey, from netip.Addr) {
	if f.none() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.bySource, sourceKey{from, k})
	delete(f.byLink, k)
	f.recount()
}

// avoid reports whether a source should not try an endpoint now. If alone is set, failures
// of other sources do not count. After the period, avoid returns false for the first caller
// only; further callers avoid the endpoint until that attempt has a result. An attempt with
// UDP has no result, so that all may try.
func (f *failures) avoid(k failureKey, from netip.Addr, alone bool) bool {
	if f.none() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	until, own := f.bySource[sourceKey{from, k}]
	link := f.byLink[k]
	shared := link.shared && !alone
	if own && now.Before(until) || shared && now.Before(link.until) {
		return true
	}
	if k.protocol != v1.ProtocolUDP {
		if own {
			f.bySource[sourceKey{from, k}] = now.Add(f.period)
		}
		if shared {
			link.until = now.Add(f.period)
			f.byLink[k] = link
		}
	}
	return false
}

// has reports whether an endpoint has failed recently, whether or not it may be tried now.
func (f *failures) has(k failureKey, from netip.Addr) bool {
	if f.none() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, own := f.bySource[sourceKey{from, k}]
	return own || f.byLink[k].shared
}

// expire removes entries whose last failure is long ago.
func (f *failures) expire(now time.Time) {
	if f.none() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	isOld := func(until time.Time) bool { return now.Sub(until) > 10*f.period }
	maps.DeleteFunc(f.bySource, func(_ sourceKey, until time.Time) bool { return isOld(until) })
	maps.DeleteFunc(f.byLink, func(_ failureKey, x failure) bool { return isOld(x.until) })
	f.recount()
}

// none reports whether no endpoint has failed recently.
func (f *failures) none() bool { return f.count.Load() == 0 }

// recount requires f.mu.
func (f *failures) recount() { f.count.Store(int64(len(f.bySource) + len(f.byLink))) }
