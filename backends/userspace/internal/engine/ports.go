package engine

import (
	"errors"
	"net/netip"
	"sync"
)

// ErrNoPort says that there is no port left from which an endpoint can be
// reached. Another endpoint may have one.
var ErrNoPort = errors.New("no source port is left for this endpoint")

// Path is what may be open only once from each port: a source address, not valid
// for that of the node, and an endpoint.
type Path struct {
	From netip.Addr
	To   netip.AddrPort
}

// Ports lends source ports of a range. Flows on different paths may have the same
// port at a time, those on one path never. What it does takes constant time, and
// a port that was given back comes last. Its methods may be called from several
// goroutines at once.
//
// Neighbours are lent far apart: where other programs have many ports in a row,
// whoever finds one of them taken finds the next one free.
type Ports struct {
	first, count uint16
	stride       uint32

	mu    sync.Mutex
	start uint16 // where the next path begins
	lent  map[Path]*loans
}

// loans are the ports of one path.
type loans struct {
	start, fresh uint16   // fresh ones, from start on, were handed out
	back         []uint16 // in the order in which they came back
}

// NewPorts gives the count ports from first on. Processes differ in where they
// begin.
func NewPorts(first, count uint16, begin uint32) *Ports {
	return &Ports{first: first, count: count, stride: Stride(count), start: uint16(begin % uint32(count)), lent: map[Path]*loans{}}
}

// Stride gives how far to go from one of count ports to the next one so that all
// have their turn, and that those of any few turns in a row lie far apart: the
// golden section.
func Stride(count uint16) uint32 {
	n := uint32(count)
	stride := max(1, n*618/1000)
	for gcd(stride, n) != 1 {
		stride--
	}
	return stride
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Take lends a port for a path, or fails with [ErrNoPort].
func (p *Ports) Take(on Path) (uint16, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lent[on]
	if l == nil {
		l = &loans{start: p.start}
		p.lent[on] = l
	}
	// Ports of a path that was just given up are not the first ones again.
	p.start = uint16((uint32(p.start) + 1) % uint32(p.count))
	switch {
	case l.fresh < p.count:
		n := (uint32(l.start) + uint32(l.fresh)) % uint32(p.count) * p.stride % uint32(p.count)
		l.fresh++
		return p.first + uint16(n), nil
	case len(l.back) == 0:
		return 0, ErrNoPort
	}
	port := l.back[0]
	l.back = l.back[1:]
	return port, nil
}

// Give takes back a port that was lent for a path.
func (p *Ports) Give(on Path, port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lent[on]
	if l == nil {
		return
	}
	l.back = append(l.back, port)
	if len(l.back) == int(l.fresh) {
		delete(p.lent, on)
	}
}
