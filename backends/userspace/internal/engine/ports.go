package engine

import (
	"errors"
	"net/netip"
	"sync"
)

// ErrNoPort says that all source ports for an endpoint are in use. Another endpoint may
// have a free one.
var ErrNoPort = errors.New("no source port is left for this endpoint")

// Path is a source address and an endpoint, between which each source port may be used only
// once at a time. From is not valid if it is an address of the node.
type Path struct {
	From netip.Addr
	To   netip.AddrPort
}

// Ports lends source ports of a range. Flows on different paths may use the same port at a
// time, those on one path never. Its methods take constant time, and may be called from
// several goroutines at once. A returned port is lent again last.
//
// Consecutive loans are far apart: if other programs use many ports in a row, the loan after
// a port in use is likely to be a free port.
type Ports struct {
	first, count uint16
	stride       uint32

	mu    sync.Mutex
	start uint16 // index at which the next path begins
	lent  map[Path]*loans
}

// loans are the ports of one path.
type loans struct {
	start, fresh uint16   // the first fresh ports from start on have been lent
	back         []uint16 // returned ports, in that order
}

// NewPorts returns the count ports from first on. Begin varies the first loan: processes
// should pass different values.
func NewPorts(first, count uint16, begin uint32) *Ports {
	p := &Ports{first: first, count: count, stride: Stride(count), lent: map[Path]*loans{}}
	p.StartAt(begin)
	return p
}

// StartAt varies the first loan of later paths, as begin of [NewPorts] does.
func (p *Ports) StartAt(begin uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start = uint16(begin % uint32(p.count))
}

// Stride returns the step from one of count ports to the next that visits all of them, and
// keeps ports of successive steps far apart: the golden section of count.
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
	// Each loan moves the start of later paths on, so that a path whose ports were all
	// returned does not begin with the same ports again.
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

// Give returns a port that was lent for a path.
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
