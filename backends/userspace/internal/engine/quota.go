package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// shares bound how many of limit flows one client and one service port may have. Once half
// of limit is in use, a client that has an eighth of it gets no more, so that half is left to
// other clients. Once three quarters are in use, a service port that has half of limit gets
// no more.
type shares struct{ limit int }

// client reports whether a client gets no more flows.
func (s shares) client(total, own int) bool {
	return total >= (s.limit+1)/2 && own >= max(1, s.limit/8)
}

// service reports whether a service port gets no more flows.
func (s shares) service(total, own int) bool {
	quarter := s.limit / 4
	return quarter > 0 && total >= s.limit-quarter && own >= s.limit/2
}

// holder is what a flow counts for: a client, as returned by clientKey, which is not valid if no
// share bounds it, and a service port, nil if the flow has none.
type holder struct {
	client  netip.Addr
	service *service
}

// quota counts flows and keeps them to the shares of their clients and service ports. It
// does not bound the total: the caller does.
type quota struct {
	shares

	mu       sync.Mutex
	total    int
	clients  map[netip.Addr]int
	services map[*service]int
}

func newQuota(limit int) *quota {
	return &quota{shares: shares{limit}, clients: map[netip.Addr]int{}, services: map[*service]int{}}
}

// take counts one more flow. It reports false if that would exceed the share of its client
// or its service port.
func (q *quota) take(h holder) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if h.client.IsValid() && q.client(q.total, q.clients[h.client]) || h.service != nil && q.service(q.total, q.services[h.service]) {
		return false
	}
	q.total++
	q.clients[h.client]++
	q.services[h.service]++
	return true
}

// give ends the count of a flow that take has counted.
func (q *quota) give(h holder) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.total--
	if q.clients[h.client]--; q.clients[h.client] == 0 {
		delete(q.clients, h.client)
	}
	if q.services[h.service]--; q.services[h.service] == 0 {
		delete(q.services, h.service)
	}
}

// bound limits how many of something exist at a time.
type bound struct {
	limit int64
	taken atomic.Int64
}

// take counts one more; it reports false at the limit.
func (b *bound) take() bool {
	if b.taken.Add(1) > b.limit {
		b.taken.Add(-1)
		return false
	}
	return true
}

// give ends the count of one that take has counted.
func (b *bound) give() { b.taken.Add(-1) }

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
