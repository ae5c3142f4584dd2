package engine

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// balance is the round of a service port.
type balance struct {
	mu   sync.Mutex
	last [2]netip.AddrPort // the last choice, by pool; not valid before the first one
}

// inTurn returns the index of the endpoint whose turn it is: the one after the last choice, by the
// addresses of the endpoints, so that a change of these does not restart the round. The first choice is
// random, so that the nodes of a cluster do not all begin with the same endpoint.
func (b *balance) inTurn(pool proxy.Pool, among []*endpoints.Endpoint) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, found := slices.BinarySearchFunc(among, b.last[pool], func(e *endpoints.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	if found {
		i++
	}
	if !b.last[pool].IsValid() {
		i = rand.IntN(len(among))
	}
	i %= len(among)
	b.last[pool] = among[i].Addr
	return i
}

// choose returns the index of one of the endpoints, which must not be empty: the choice of Hooks.Pick, a
// random one if that chooses none, or the one whose turn it is.
func (c *candidates) choose(among []*endpoints.Endpoint) int {
	d := c.decision
	pick := c.engine.config.Hooks.Pick
	if pick == nil {
		return d.service.balance.inTurn(d.route.Pool, among)
	}
	if i := pick(d.flow, among); i >= 0 && i < len(among) {
		return i
	}
	return rand.IntN(len(among))
}
