package netfilter

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// path is a source address and an endpoint, between which each source port may be used only
// once at a time. from is not valid if it is an address of the node.
type path struct {
	from netip.Addr
	to   netip.AddrPort
}

// ports are the source ports of a range, in a random order: if other programs use many ports in a
// row, the port after one in use is likely to be free.
type ports struct {
	order []uint16

	mu   sync.Mutex
	at   int // index of the next port
	lent map[path]map[uint16]bool
}

// newPorts returns the count ports from first on.
func newPorts(first uint16, count int) *ports {
	p := &ports{order: make([]uint16, count), lent: map[path]map[uint16]bool{}}
	for i, n := range rand.Perm(count) {
		p.order[i] = first + uint16(n)
	}
	return p
}

// startAt makes a port the next one.
func (p *ports) startAt(port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = slices.Index(p.order, port)
}

// next returns all ports in turn. The kernel knows which of them a connection may have.
func (p *ports) next() uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.step()
}

// step returns the next port, and moves on. It requires p.mu.
func (p *ports) step() uint16 {
	port := p.order[p.at]
	p.at = (p.at + 1) % len(p.order)
	return port
}

// take lends the next port that is not lent on a path, or fails with [engine.ErrNoPort]. Flows on different paths may
// use the same port at a time.
func (p *ports) take(on path) (uint16, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lent := p.lent[on]
	if len(lent) == len(p.order) {
		return 0, engine.ErrNoPort
	}
	if lent == nil {
		lent = map[uint16]bool{}
		p.lent[on] = lent
	}
	port := p.step()
	for lent[port] {
		port = p.step()
	}
	lent[port] = true
	return port, nil
}

// give returns a port that was lent for a path.
func (p *ports) give(on path, port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.lent[on], port); len(p.lent[on]) == 0 {
		delete(p.lent, on)
	}
}
