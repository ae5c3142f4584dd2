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

	mu    sync.Mutex
	start int // index of the next port of connections, and of the next path
	lent  map[path]*loans
}

// loans are the ports of one path.
type loans struct {
	start, fresh int      // the first fresh ports from start on have been lent
	back         []uint16 // returned ports, in that order
}

// newPorts returns the count ports from first on.
func newPorts(first uint16, count int) *ports {
	p := &ports{order: make([]uint16, count), lent: map[path]*loans{}}
	for i, n := range rand.Perm(count) {
		p.order[i] = first + uint16(n)
	}
	return p
}

// startAt makes a port the next one, except on paths that have ports.
func (p *ports) startAt(port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start = slices.Index(p.order, port)
}

// next returns all ports in turn. The kernel knows which of them a connection may have.
func (p *ports) next() uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.order[p.step()]
}

// step returns the index start, and moves it on. It requires p.mu.
func (p *ports) step() int {
	i := p.start
	p.start = (i + 1) % len(p.order)
	return i
}

// take lends a port, or fails with [engine.ErrNoPort]. Flows on different paths may use the same
// port at a time, those on one path never. A returned port is lent again last.
func (p *ports) take(on path) (uint16, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start, l := p.step(), p.lent[on] // each loan, so that a path whose ports were all returned begins elsewhere
	if l == nil {
		l = &loans{start: start}
		p.lent[on] = l
	}
	switch {
	case l.fresh < len(p.order):
		l.fresh++
		return p.order[(l.start+l.fresh-1)%len(p.order)], nil
	case len(l.back) == 0:
		return 0, engine.ErrNoPort
	}
	port := l.back[0]
	l.back = l.back[1:]
	return port, nil
}

// give returns a port that was lent for a path.
func (p *ports) give(on path, port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lent[on]
	l.back = append(l.back, port)
	if len(l.back) == l.fresh {
		delete(p.lent, on)
	}
}
