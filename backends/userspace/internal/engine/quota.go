package engine

import (
	"math"
	"net/netip"
	"sync"
)

// quota bounds how many flows one client has of those that there may be: from
// the time on when half of all are taken, no client with an eighth of all or
// more gets another one. So whatever one client does, half is left to others.
type quota struct {
	limit int

	mu    sync.Mutex
	total int
	held  map[netip.Addr]int // by what clientKey gives
}

func newQuota(limit int) *quota { return &quota{limit: limit, held: map[netip.Addr]int{}} }

// share is how many a client may have when half of all are taken.
func (q *quota) share() int { return max(1, q.limit/8) }

// take counts one more flow of a client, unless it is one too many for him.
func (q *quota) take(client netip.Addr) bool { return q.takeBelow(client, math.MaxInt) }

// takeOne does the same, but not beyond the limit for all.
func (q *quota) takeOne(client netip.Addr) bool { return q.takeBelow(client, q.limit) }

// takeBelow does the same where there are fewer flows than a number.
func (q *quota) takeBelow(client netip.Addr, most int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.total >= most || q.total >= (q.limit+1)/2 && q.held[client] >= q.share() {
		return false
	}
	q.total++
	q.held[client]++
	return true
}

// give takes back one that was counted.
func (q *quota) give(client netip.Addr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.total--
	if q.held[client]--; q.held[client] == 0 {
		delete(q.held, client)
	}
}

// clientKey tells clients apart. Who has an IPv6 address outside of the cluster
// has the other 2⁶⁴ of its network as well; a pod has the one that it was given.
func clientKey(client netip.Addr, o Origin) netip.Addr {
	if client.Is4() || o == Pod || o == Node {
		return client
	}
	return netip.PrefixFrom(client, 64).Masked().Addr()
}
