package engine

import (
	"container/heap"
	"net/netip"
)

// idleIndex finds the session that has been idle for longest: of all, of a client, and
// of a service port. Use newIdleIndex to make one.
type idleIndex struct {
	all      idle
	clients  map[netip.Addr]*idle
	services map[*service]*idle
}

func newIdleIndex() idleIndex {
	return idleIndex{clients: map[netip.Addr]*idle{}, services: map[*service]*idle{}}
}

// add adds a session.
func (i *idleIndex) add(s *session) {
	s.entries[0] = i.all.add(s)
	s.entries[1] = addTo(i.clients, s.holder.client, s)
	s.entries[2] = addTo(i.services, s.holder.service, s)
}

// remove removes a session that was added.
func (i *idleIndex) remove(s *session) {
	heap.Remove(&i.all, s.entries[0].at)
	removeFrom(i.clients, s.holder.client, s.entries[1])
	removeFrom(i.services, s.holder.service, s.entries[2])
}

// evict returns the session that must end before the holder may begin another one; nil below
// the limits.
func (i *idleIndex) evict(limit int, to holder) *session {
	is, total := shares{limit}, len(i.all)
	if own := i.clients[to.client]; own != nil && to.client.IsValid() && is.client(total, len(*own)) {
		return own.longest()
	}
	if own := i.services[to.service]; own != nil && is.service(total, len(*own)) {
		return own.longest()
	}
	if total >= limit {
		return i.all.longest()
	}
	return nil
}

// evictForPort returns the session of the holder's service port to end, so that another one
// may have its source port: the client's that has been idle for longest, if the client has
// more than half as many sessions as the service port; otherwise any client's; nil if there
// is none.
func (i *idleIndex) evictForPort(to holder) *session {
	all, own := i.services[to.service], i.clients[to.client]
	if all == nil {
		return nil
	}
	if own != nil && 2*len(*own) > len(*all) {
		if s := own.longest(); s.holder.service == to.service {
			return s
		}
	}
	return all.longest()
}

func addTo[K comparable](all map[K]*idle, of K, s *session) *idleEntry {
	if all[of] == nil {
		all[of] = new(idle)
	}
	return all[of].add(s)
}

func removeFrom[K comparable](all map[K]*idle, of K, p *idleEntry) {
	if heap.Remove(all[of], p.at); len(*all[of]) == 0 {
		delete(all, of)
	}
}

// idle is a heap of sessions, ordered by when they were used as far as the heap has recorded
// it. Using a session does not update the heap: longest does, when the session is first.
type idle []*idleEntry

// idleEntry is a session in one of the heaps.
type idleEntry struct {
	session *session
	used    int64 // session.used when the heap last read it
	at      int   // index in the heap
}

func (h *idle) add(s *session) *idleEntry {
	p := &idleEntry{session: s, used: s.used.Load()}
	heap.Push(h, p)
	return p
}

// longest returns the session that has been idle for longest. The heap must not be empty.
func (h *idle) longest() *session {
	for range len(*h) { // bounded, since sessions may be used at the same time
		front := (*h)[0]
		used := front.session.used.Load()
		if used == front.used {
			break
		}
		front.used = used
		heap.Fix(h, 0)
	}
	return (*h)[0].session
}

// Len implements [heap.Interface].
func (h *idle) Len() int { return len(*h) }

// Less implements [heap.Interface].
func (h *idle) Less(i, j int) bool { return (*h)[i].used < (*h)[j].used }

// Swap implements [heap.Interface].
func (h *idle) Swap(i, j int) {
	(*h)[i], (*h)[j] = (*h)[j], (*h)[i]
	(*h)[i].at, (*h)[j].at = i, j
}

// Push implements [heap.Interface].
func (h *idle) Push(x any) {
	p, _ := x.(*idleEntry) // the heap has no other type
	p.at = len(*h)
	*h = append(*h, p)
}

// Pop implements [heap.Interface].
func (h *idle) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}
