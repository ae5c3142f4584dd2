package engine

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// Picker says how the engine chooses one endpoint of several for a new flow.
type Picker uint8

// The pickers.
const (
	// RoundRobin chooses the endpoints of a pool in turn, by their addresses. When endpoints
	// come or go, it continues with the one after the last that it has chosen.
	RoundRobin Picker = iota
	// Random chooses any endpoint.
	Random
	// LeastConnections chooses, in turn, among the endpoints to which the fewest connections
	// and sessions of the service port lead.
	LeastConnections
)

// String returns the name of the picker, as in "round-robin".
func (p Picker) String() string {
	switch p {
	case RoundRobin:
		return "round-robin"
	case Random:
		return "random"
	case LeastConnections:
		return "least-connections"
	default:
		return fmt.Sprintf("picker %d", uint8(p))
	}
}

// balance is what the pickers remember of a service port.
type balance struct {
	mu     sync.Mutex
	last   [2]netip.AddrPort      // the last choice, by pool; not valid before the first one
	loaded map[netip.AddrPort]int // flows by endpoint; only for LeastConnections
}

// inTurn returns the index of the endpoint whose turn it is. Endpoints that are not sorted by
// address may have their turns in any order.
func (b *balance) inTurn(pool proxy.Pool, among []*endpoints.Endpoint) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.next(pool, among)
	b.last[pool] = among[i].Addr
	return i
}

// leastLoaded returns the index of an endpoint with the fewest flows: of several, the first from
// the one whose turn it is.
func (b *balance) leastLoaded(pool proxy.Pool, among []*endpoints.Endpoint) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.next(pool, among)
	best := first
	for n := range among {
		i := (first + n) % len(among)
		if b.loaded[among[i].Addr] < b.loaded[among[best].Addr] {
			best = i
		}
	}
	b.last[pool] = among[best].Addr
	return best
}

// next returns the index of the endpoint after the last choice. The first choice is random, so
// that the nodes of a cluster do not all begin with the same endpoint. It requires b.mu.
func (b *balance) next(pool proxy.Pool, among []*endpoints.Endpoint) int {
	last := b.last[pool]
	if !last.IsValid() {
		return rand.IntN(len(among))
	}
	i, found := slices.BinarySearchFunc(among, last, func(e *endpoints.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	if found {
		i++
	}
	return i % len(among)
}

// load counts n more flows to an endpoint, for LeastConnections.
func (s *service) load(to netip.AddrPort, n int) {
	if s.engine.config.Picker != LeastConnections {
		return
	}
	b := &s.balance
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loaded == nil {
		b.loaded = map[netip.AddrPort]int{}
	}
	if b.loaded[to] += n; b.loaded[to] == 0 {
		delete(b.loaded, to)
	}
}

// choose returns the index of one of the endpoints, which must not be empty.
func (c *candidates) choose(among []*endpoints.Endpoint) int {
	d := c.decision
	config := &c.engine.config
	switch {
	case config.Hooks.Pick != nil || config.Picker == Random:
		return c.engine.pick(d.flow, among)
	case config.Picker == LeastConnections:
		return d.service.balance.leastLoaded(d.route.Pool, among)
	default:
		return d.service.balance.inTurn(d.route.Pool, among)
	}
}
