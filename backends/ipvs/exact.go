package ipvs

import (
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// exactFrontends are the frontends of a snapshot at addresses of the node, such as load-balancer
// IPs. They have precedence over node ports of the same number there, as in [proxy.Route]; the
// kernel has only one virtual server at an address and port.
type exactFrontends struct {
	// host are the addresses of the node.
	host []netip.Addr
	// of is the snapshot that was counted.
	of proxy.Snapshot
	at map[frontend]int
	// nodePorts has the node ports of the snapshot, without addresses.
	nodePorts map[frontend]int
}

func newExactFrontends(host []netip.Addr) *exactFrontends {
	return &exactFrontends{host: host, at: map[frontend]int{}, nodePorts: map[frontend]int{}}
}

// nodePortAt returns the node port that has the number of a frontend.
func nodePortAt(f frontend) frontend {
	f.addr = netip.AddrPortFrom(netip.Addr{}, f.addr.Port())
	return f
}

// update counts what differs in a snapshot. It reports whether it has other frontends at addresses
// of the node, and whether node ports therefore answer at other addresses than before, so that
// their service ports must be rendered again.
func (e *exactFrontends) update(snapshot proxy.Snapshot) (isOther, isMoved bool) {
	var removed []frontend      // node ports
	var moved map[frontend]bool // counted now and not before, or the other way round
	count := func(port *proxy.ServicePort, by, end int) {
		for f := range e.frontends(port) {
			isNodePort := !f.addr.Addr().IsValid()
			switch n := addTo(e.mapOf(f), f, by); {
			case n != end:
			case !isNodePort:
				moved = flip(moved, f)
			case by < 0:
				removed = append(removed, f)
			}
		}
	}
	for change := range snapshot.Changes(e.of) {
		count(change.New, 1, 1)
		count(change.Old, -1, 0)
	}
	e.of = snapshot
	for f, isSo := range moved {
		n := nodePortAt(f)
		isOther = isOther || isSo
		isMoved = isMoved || isSo && (e.nodePorts[n] > 0 || slices.Contains(removed, n))
	}
	return isOther, isMoved
}

// frontends yields the node ports of a service port, and its other frontends at addresses of the
// node.
func (e *exactFrontends) frontends(port *proxy.ServicePort) func(yield func(frontend) bool) {
	return func(yield func(frontend) bool) {
		if port == nil {
			return
		}
		protocol := ipaddr.ProtocolNumber(port.Name.Protocol)
		for i := range port.Frontends {
			f := frontend{key{protocol: protocol, addr: port.Frontends[i].Addr}}
			switch {
			case port.Frontends[i].Kind == proxy.NodePort:
				f = nodePortAt(f)
			case !slices.Contains(e.host, f.addr.Addr()):
				continue
			}
			if !yield(f) {
				return
			}
		}
	}
}

// mapOf returns the map that counts a frontend.
func (e *exactFrontends) mapOf(f frontend) map[frontend]int {
	if f.addr.Addr().IsValid() {
		return e.at
	}
	return e.nodePorts
}

// addTo changes a count and returns it.
func addTo(m map[frontend]int, f frontend, by int) int {
	n := m[f] + by
	if m[f] = n; n == 0 {
		delete(m, f)
	}
	return n
}

func flip(m map[frontend]bool, f frontend) map[frontend]bool {
	if m == nil {
		m = map[frontend]bool{}
	}
	m[f] = !m[f]
	return m
}
