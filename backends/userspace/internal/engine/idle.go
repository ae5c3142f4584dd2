package engine

import "container/heap"

// idleIndex finds the session that has been idle for longest, in each group of [holder.groups].
type idleIndex map[any]*idle

// add adds a session.
func (i idleIndex) add(s *session) {
	for n, of := range s.holder.groups() {
		if i[of] == nil {
			i[of] = new(idle)
		}
		s.entries[n] = i[of].add(s)
	}
}

// remove removes a session that was added.
func (i idleIndex) remove(s *session) {
	for n, of := range s.holder.groups() {
		if heap.Remove(i[of], s.entries[n].at); len(*i[of]) == 0 {
			delete(i, of)
		}
	}
}

func (i idleIndex) count(of any) int {
	if i[of] == nil {
		return 0
	}
	return len(*i[of])
}

// evict returns the session that must end before the holder may begin another one; nil below
// the limits.
func (i idleIndex) evict(limit int, to holder) *session {
	of := shares{limit}.exceeded(to, i.count)
	if of == nil && i.count(nil) < limit {
		return nil
	}
	return i[of].longest()
}

// evictForPort returns the session of the holder's service port to end, so that another one
// may have its source port: the client's that has been idle for longest, if the client has
// more than half as many sessions as the service port; otherwise any client's; nil if there
// is none.
func (i idleIndex) evictForPort(to holder) *session {
	if i.count(to.service) == 0 {
		return nil
	}
	if 2*i.count(to.client) > i.count(to.service) {
		if s := i[to.client].longest(); s.holder.service == to.service {
			return s
		}
	}
	return i[to.service].longest()
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
