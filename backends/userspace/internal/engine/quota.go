package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// shares are what parts of a number of flows one client and one service port may
// have. Once half of all are taken, a client with an eighth of all or more gets
// none beyond, so that whatever one client does, half is left to others. Once three
// quarters are taken, the same goes for a service port with half of all.
type shares struct{ limit int }

// client reports whether a client has more than may be added to.
func (s shares) client(total, own int) bool {
	return total >= (s.limit+1)/2 && own >= max(1, s.limit/8)
}

// service reports whether a service port has more than may be added to.
func (s shares) service(total, own int) bool {
	quarter := s.limit / 4
	return quarter > 0 && total >= s.limit-quarter && own >= s.limit/2
}

// holder is who has flows: a client, by what clientKey gives, and a service port; nil
// for none.
type holder struct {
	client  netip.Addr
	service *service
}

// quota holds flows to the shares of who has them. It has no limit for all: who counts
// more than there may be waits.
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

// take counts one more flow, unless it is one too many for its client or its service
// port.
func (q *quota) take(h holder) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.client(q.total, q.clients[h.client]) || h.service != nil && q.service(q.total, q.services[h.service]) {
		return false
	}
	q.total++
	q.clients[h.client]++
	q.services[h.service]++
	return true
}

// give takes back one that was counted.
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

// bound is how many there may be of something at a time.
type bound struct {
	limit int64
	taken atomic.Int64
}

// take counts one more, unless there are too many.
func (b *bound) take() bool {
	if b.taken.Add(1) > b.limit {
		b.taken.Add(-1)
		return false
	}
	return true
}

// give takes back one that was counted.
func (b *bound) give() { b.taken.Add(-1) }

// clientKey tells clients apart. Who has an IPv6 address outside of the cluster
// has the other 2⁶⁴ of its network as well; a pod has the one that it was given.
func clientKey(client netip.Addr, o Origin) netip.Addr {
	if client.Is4() || o == Pod || o == Node {
		return client
	}
	return netip.PrefixFrom(client, 64).Masked().Addr()
}
