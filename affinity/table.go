package affinity

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

// DefaultClients is the default limit of a [Table], in clients.
const DefaultClients = 65_536

// Table has the endpoint of each client address. A dataplane in user space has one for
// each service port and pool.
//
// A table keeps a client until the timeout has passed since the last [Table.Put] or
// [Table.Get], or until its endpoint is removed. A full table removes the client that has
// been idle for longest. Every operation takes constant time, except [Table.Remove], which
// takes it for each removed client. Several tables can have a common limit, see [Budget]. A
// Table has no goroutine: each call removes the clients whose timeout has passed.
//
// The methods may be called from several goroutines at once.
type Table struct {
	budget *Budget      // may be nil
	size   atomic.Int64 // number of clients, for reading without mu

	mu      sync.Mutex
	start   time.Time
	timeout time.Duration
	limit   int

	clients   map[netip.Addr]int32
	endpoints map[netip.AddrPort]int32 // the newest entry of each
	entries   []entry                  // entry 0 is the root of the list by age
	free      int32                    // the first of the unused entries; 0 is none
}

// entry is a client with its endpoint. It is in two lists: that of all clients
// by the time of their last connection, and that of the clients of its endpoint.
// The links are indexes, which the garbage collector need not follow.
type entry struct {
	client       netip.Addr
	endpoint     netip.AddrPort
	used         time.Duration // last connection, since the start of the table
	older, newer int32
	prev, next   int32 // of the same endpoint; 0 is none
}

// NewTable returns an empty table for at most limit clients, with one timeout for all. A
// limit of zero, or less, means [DefaultClients]. With a timeout of zero the table stays
// empty.
func NewTable(timeout time.Duration, limit int) *Table {
	if limit <= 0 {
		limit = DefaultClients
	}
	return &Table{
		start: time.Now(), timeout: timeout, limit: limit,
		clients: map[netip.Addr]int32{}, endpoints: map[netip.AddrPort]int32{}, entries: make([]entry, 1),
	}
}

// SetTimeout changes the timeout, also of the clients in the table. Zero removes
// all of them.
func (t *Table) SetTimeout(timeout time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timeout = timeout
	t.expire(time.Since(t.start))
}

// Get returns the endpoint of a client, and records a new connection of it.
func (t *Table) Get(client netip.Addr) (endpoint netip.AddrPort, ok bool) {
	client = client.Unmap()
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.start)
	t.expire(now)
	i, ok := t.clients[client]
	if !ok {
		return netip.AddrPort{}, false
	}
	t.unlinkAge(i)
	t.linkAge(i, now)
	return t.entries[i].endpoint, true
}

// Put sets the endpoint of a client, and records a new connection of it.
func (t *Table) Put(client netip.Addr, endpoint netip.AddrPort) {
	client, endpoint = client.Unmap(), ipaddr.Unmap(endpoint)
	if !t.put(client, endpoint) && t.budget.makeRoom() {
		t.put(client, endpoint) // If other goroutines used the room, the table does not keep the client.
	}
}

// put reports false, and does nothing, if the budget has no room.
func (t *Table) put(client netip.Addr, endpoint netip.AddrPort) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.start)
	t.expire(now)
	if t.timeout <= 0 {
		return true
	}
	i, ok := t.clients[client]
	switch {
	case ok:
		t.unlinkAge(i)
		t.unlinkEndpoint(i)
	case len(t.clients) >= t.limit:
		t.forget(t.entries[0].newer)
		fallthrough
	default:
		if !t.budget.take() {
			return false
		}
		i = t.take()
		t.clients[client] = i
		t.entries[i].client = client
		t.budget.grown(t, t.size.Add(1))
	}
	t.linkAge(i, now)
	t.linkEndpoint(i, endpoint)
	return true
}

// forgetOne removes the client that has been idle for longest, and reports
// whether there was one.
func (t *Table) forgetOne() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.entries[0].newer
	if i != 0 {
		t.forget(i)
	}
	return i != 0
}

// Remove removes all clients of an endpoint, and returns their number.
func (t *Table) Remove(endpoint netip.AddrPort) int {
	endpoint = ipaddr.Unmap(endpoint)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(time.Since(t.start))
	n := 0
	for i := t.endpoints[endpoint]; i != 0; n++ {
		next := t.entries[i].next
		t.forget(i)
		i = next
	}
	return n
}

// Len returns the number of clients.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(time.Since(t.start))
	return len(t.clients)
}

// expire removes the clients whose timeout has passed. They are the first in the
// list by age.
func (t *Table) expire(now time.Duration) {
	for i := t.entries[0].newer; i != 0 && now-t.entries[i].used >= t.timeout; i = t.entries[0].newer {
		t.forget(i)
	}
	if len(t.clients) == 0 && len(t.entries) > 1 {
		// Maps and slices do not shrink: free the memory of a burst of clients.
		t.clients, t.endpoints = map[netip.Addr]int32{}, map[netip.AddrPort]int32{}
		t.entries, t.free = make([]entry, 1), 0
	}
}

// take returns an unused entry.
func (t *Table) take() int32 {
	if i := t.free; i != 0 {
		t.free = t.entries[i].next
		t.entries[i] = entry{}
		return i
	}
	t.entries = append(t.entries, entry{})
	return int32(len(t.entries) - 1)
}

func (t *Table) forget(i int32) {
	t.unlinkAge(i)
	t.unlinkEndpoint(i)
	delete(t.clients, t.entries[i].client)
	t.entries[i] = entry{next: t.free}
	t.free = i
	t.budget.shrunk(t, t.size.Add(-1))
}

// linkAge adds an entry to the list by age, as the newest one.
func (t *Table) linkAge(i int32, now time.Duration) {
	e, root := &t.entries[i], &t.entries[0]
	e.used, e.newer, e.older = now, 0, root.older
	t.entries[e.older].newer = i
	root.older = i
}

func (t *Table) unlinkAge(i int32) {
	e := &t.entries[i]
	t.entries[e.older].newer = e.newer
	t.entries[e.newer].older = e.older
}

func (t *Table) linkEndpoint(i int32, endpoint netip.AddrPort) {
	e := &t.entries[i]
	e.endpoint, e.prev, e.next = endpoint, 0, t.endpoints[endpoint]
	if e.next != 0 {
		t.entries[e.next].prev = i
	}
	t.endpoints[endpoint] = i
}

func (t *Table) unlinkEndpoint(i int32) {
	e := &t.entries[i]
	if e.next != 0 {
		t.entries[e.next].prev = e.prev
	}
	switch {
	case e.prev != 0:
		t.entries[e.prev].next = e.next
	case e.next != 0:
		t.endpoints[e.endpoint] = e.next
	default:
		delete(t.endpoints, e.endpoint)
	}
}
