package affinity

import (
	"container/list"
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
	timeout time.Duration
	limit   int
	clients map[netip.Addr]*list.Element
	byAge   list.List // of *entry, the client that has been idle for longest first
	// endpoints has the clients of each endpoint.
	endpoints map[netip.AddrPort]map[netip.Addr]struct{}
}

// entry is a client with its endpoint.
type entry struct {
	client   netip.Addr
	endpoint netip.AddrPort
	used     time.Time // last connection
}

// NewTable returns an empty table for at most limit clients, with one timeout for all. A
// limit of zero, or less, means [DefaultClients]. With a timeout of zero the table stays
// empty.
func NewTable(timeout time.Duration, limit int) *Table {
	if limit <= 0 {
		limit = DefaultClients
	}
	t := &Table{timeout: timeout, limit: limit}
	t.shrink()
	return t
}

// SetTimeout changes the timeout, also of the clients in the table. Zero removes
// all of them.
func (t *Table) SetTimeout(timeout time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timeout = timeout
	t.expire(time.Now())
}

// Get returns the endpoint of a client, and records a new connection of it.
func (t *Table) Get(client netip.Addr) (endpoint netip.AddrPort, ok bool) {
	client = client.Unmap()
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.expire(now)
	at, ok := t.clients[client]
	if !ok {
		return netip.AddrPort{}, false
	}
	e := at.Value.(*entry) //nolint:errcheck,forcetypeassert // nothing else is in the list
	e.used = now
	t.byAge.MoveToBack(at)
	return e.endpoint, true
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
	now := time.Now()
	t.expire(now)
	if t.timeout <= 0 {
		return true
	}
	if at, known := t.clients[client]; known {
		e := at.Value.(*entry) //nolint:errcheck,forcetypeassert // nothing else is in the list
		t.leave(e)
		e.endpoint, e.used = endpoint, now
		t.join(e)
		t.byAge.MoveToBack(at)
		return true
	}
	if len(t.clients) >= t.limit {
		t.forget(t.byAge.Front())
	}
	if !t.budget.take() {
		return false
	}
	e := &entry{client, endpoint, now}
	t.clients[client] = t.byAge.PushBack(e)
	t.join(e)
	t.budget.grown(t, t.size.Add(1))
	return true
}

// forgetOne removes the client that has been idle for longest, and reports
// whether there was one.
func (t *Table) forgetOne() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := t.byAge.Front()
	if oldest != nil {
		t.forget(oldest)
	}
	return oldest != nil
}

// Remove removes all clients of an endpoint, and returns their number.
func (t *Table) Remove(endpoint netip.AddrPort) int {
	endpoint = ipaddr.Unmap(endpoint)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(time.Now())
	n := len(t.endpoints[endpoint])
	for client := range t.endpoints[endpoint] {
		t.forget(t.clients[client])
	}
	if n > 0 {
		t.shrink()
	}
	return n
}

// Len returns the number of clients.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(time.Now())
	return len(t.clients)
}

// expire removes the clients whose timeout has passed.
func (t *Table) expire(now time.Time) {
	for oldest := t.byAge.Front(); oldest != nil; oldest = t.byAge.Front() {
		if e := oldest.Value.(*entry); now.Sub(e.used) < t.timeout { //nolint:errcheck,forcetypeassert // nothing else is in the list
			return
		}
		t.forget(oldest)
		t.shrink()
	}
}

// shrink frees the memory of a burst of clients, since maps do not shrink.
func (t *Table) shrink() {
	if len(t.clients) == 0 {
		t.clients, t.endpoints = map[netip.Addr]*list.Element{}, map[netip.AddrPort]map[netip.Addr]struct{}{}
	}
}

// forget removes a client.
func (t *Table) forget(at *list.Element) {
	e := t.byAge.Remove(at).(*entry) //nolint:errcheck,forcetypeassert // nothing else is in the list
	delete(t.clients, e.client)
	t.leave(e)
	t.budget.shrunk(t, t.size.Add(-1))
}

// join adds a client to its endpoint.
func (t *Table) join(e *entry) {
	if t.endpoints[e.endpoint] == nil {
		t.endpoints[e.endpoint] = map[netip.Addr]struct{}{}
	}
	t.endpoints[e.endpoint][e.client] = struct{}{}
}

// leave takes a client from its endpoint.
func (t *Table) leave(e *entry) {
	of := t.endpoints[e.endpoint]
	if delete(of, e.client); len(of) == 0 {
		delete(t.endpoints, e.endpoint)
	}
}
