package health

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// maxConns bounds the open connections of all sockets together, unless the limit of file
// descriptors bounds them further: every host that reaches the node may connect, and each
// connection needs memory.
const maxConns = 1000

// connLimit limits the connections of all sockets. Above the limit it closes the oldest: a
// client has its reply long before its connection is the oldest, and one that
// only holds connections does not block others.
type connLimit struct {
	limit int

	mu    sync.Mutex
	conns []net.Conn // the oldest first
}

func newConnLimit(limit int) *connLimit { return &connLimit{limit: limit} }

// note implements [http.Server.ConnState].
func (c *connLimit) note(conn net.Conn, state http.ConnState) {
	if oldest := c.count(conn, state); oldest != nil {
		_ = oldest.Close() // It is closed, or was.
	}
}

// count returns the connection to close, or nil.
func (c *connLimit) count(conn net.Conn, state http.ConnState) (oldest net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		c.conns = slices.DeleteFunc(c.conns, func(o net.Conn) bool { return o == conn })
	}
	if state == http.StateNew {
		c.conns = append(c.conns, conn)
	}
	if len(c.conns) > c.limit {
		oldest = c.conns[0]
		c.conns = slices.Delete(c.conns, 0, 1)
	}
	return oldest
}
