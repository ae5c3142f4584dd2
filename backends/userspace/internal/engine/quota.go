package engine

import (
	"net/netip"
	"sync"
)

// shares bound how many of limit flows one client and one service port may have. Once half
// of limit is in use, a client that has an eighth of it gets no more, so that half is left to
// other clients. Once three quarters are in use, a service port that has half of limit gets
// no more.
type shares struct{ limit int }

// exceeded returns the client or the service port of a holder that gets no more flows; nil if both
// get another one. The function returns how many flows one of them has, and all for nil.
func (s shares) exceeded(h holder, count func(of any) int) any {
	total, quarter := count(nil), s.limit/4
	switch {
	case h.client.IsValid() && total >= (s.limit+1)/2 && count(h.client) >= max(1, s.limit/8):
		return h.client
	case h.service != nil && quarter > 0 && total >= s.limit-quarter && count(h.service) >= s.limit/2:
		return h.service
	}
	return nil
}

// holder is what a flow counts for: a client, as returned by clientKey, which is not valid if no
// share bounds it, and a service port, nil if the flow has none.
type holder struct {
	client  netip.Addr
	service *service
}

// groups returns the groups of flows to which a flow belongs: all flows (nil), all flows of the client, and
// all flows of the service port.
func (h holder) groups() [3]any { return [3]any{nil, h.client, h.service} }

// quota counts flows and keeps them to the shares of their clients and service ports. It
// does not bound the total: the caller does.
type quota struct {
	shares

	mu     sync.Mutex
	counts map[any]int
}

func newQuota(limit int) *quota { return &quota{shares: shares{limit}, counts: map[any]int{}} }

// take counts one more flow. It reports false if that would exceed the share of its client
// or its service port.
func (q *quota) take(h holder) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.exceeded(h, func(of any) int { return q.counts[of] }) != nil {
		return false
	}
	for _, of := range h.groups() {
		q.counts[of]++
	}
	return true
}

// give ends the count of a flow that take has counted.
func (q *quota) give(h holder) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, of := range h.groups() {
		if q.counts[of]--; q.counts[of] == 0 {
			delete(q.counts, of)
		}
	}
}

// bound limits how many of something exist at a time, to its capacity.
type bound chan struct{}

// take counts one more; it reports false at the limit.
func (b bound) take() bool {
	select {
	case b <- struct{}{}:
		return true
	default:
		return false
	}
}

// give ends the count of one that take has counted.
func (b bound) give() { <-b }

// clientKey returns the address by which a client is counted. An IPv6 client outside of the
// cluster counts as its /64, since it may use all addresses of that; a pod has one address. It
// returns none for a loopback address, which all processes of the node share.
func clientKey(client netip.Addr, o Origin) netip.Addr {
	if o == Node && client.IsLoopback() {
		return netip.Addr{}
	}
	if client.Is4() || o == Pod || o == Node {
		return client
	}
	return netip.PrefixFrom(client, 64).Masked().Addr()
}
