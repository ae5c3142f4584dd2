package engine

import (
	"container/heap"
	"net/netip"
)

// idleness knows which sessions have been idle for longest: of all, of a client, and
// of a service port. The zero value of its maps is not usable.
type idleness struct {
	all      idle
	clients  map[netip.Addr]*idle
	services map[*service]*idle
}

func newIdleness() idleness {
	return idleness{clients: map[netip.Addr]*idle{}, services: map[*service]*idle{}}
}

// add takes up a session.
func (i *idleness) add(s *session) {
	s.places[0] = i.all.add(s)
	s.places[1] = addTo(i.clients, s.holder.client, s)
	s.places[2] = addTo(i.services, s.holder.service, s)
}

// remove lets go of one that was taken up.
func (i *idleness) remove(s *session) {
	heap.Remove(&i.all, s.places[0].at)
	removeFrom(i.clients, s.holder.client, s.places[1])
	removeFrom(i.services, s.holder.service, s.places[2])
}

// giving gives the session that is to end so that its holder may begin another one; nil
// while there is room.
func (i *idleness) giving(limit int, to holder) *session {
	is, total := shares{limit}, len(i.all)
	if own := i.clients[to.client]; own != nil && is.client(total, len(*own)) {
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

// givingPort gives the session of a service port that must give way for another one of the
// same service port: one of the same client, if that has most of them; nil if there is none.
func (i *idleness) givingPort(to holder) *session {
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

func addTo[K comparable](all map[K]*idle, of K, s *session) *place {
	if all[of] == nil {
		all[of] = new(idle)
	}
	return all[of].add(s)
}

func removeFrom[K comparable](all map[K]*idle, of K, p *place) {
	if heap.Remove(all[of], p.at); len(*all[of]) == 0 {
		delete(all, of)
	}
}

// idle is a heap whose first session seems to have been idle for longest. Using a session
// does not update the heap: longest does, when the session is first.
type idle []*place

// place is where a session is.
type place struct {
	session *session
	used    int64 // when the session was used, as far as is known here
	at      int
}

func (h *idle) add(s *session) *place {
	p := &place{session: s, used: s.used.Load()}
	heap.Push(h, p)
	return p
}

// longest gives the session that has been idle for longest, of which there is at least
// one.
func (h *idle) longest() *session {
	for range len(*h) { // as others may be used meanwhile
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
	p, _ := x.(*place) // nothing else is put in
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
