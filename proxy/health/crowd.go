package health

import (
	"net"
	"net/http"
	"sync"
)

// maxConns is how many connections are open at once, at all sockets together, or fewer
// where the process may not have many file descriptors. Everybody who reaches the node may
// connect, and each connection takes memory.
const maxConns = 1000

// crowd are the connections of all sockets. When there are too many, the oldest has
// to go: whoever asks has an answer long before it is the oldest, and whoever only
// holds connections holds others' off no longer than that.
type crowd struct {
	limit int

	mu     sync.Mutex
	number uint64
	conns  map[net.Conn]uint64 // numbered as they came
}

func newCrowd(limit int) *crowd { return &crowd{limit: limit, conns: map[net.Conn]uint64{}} }

// note is what a [http.Server] calls when a connection changes its state.
func (c *crowd) note(conn net.Conn, state http.ConnState) {
	if oldest := c.count(conn, state); oldest != nil {
		_ = oldest.Close() // It is closed, or was.
	}
}

// count gives the connection that has to go, or nil.
func (c *crowd) count(conn net.Conn, state http.ConnState) (oldest net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.number++
		c.conns[conn] = c.number
	case http.StateClosed, http.StateHijacked:
		delete(c.conns, conn)
	case http.StateActive, http.StateIdle:
	}
	if len(c.conns) <= c.limit {
		return nil
	}
	for other, number := range c.conns {
		if oldest == nil || number < c.conns[oldest] {
			oldest = other
		}
	}
	delete(c.conns, oldest)
	return oldest
}
