package ipvs

import (
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// facts are what objects depend on beside the node and their service port.
type facts struct {
	// schedulers are the names of the schedulers that the kernel has.
	schedulers []string
	// host are the addresses at which node ports may answer: of all interfaces of the node but
	// the dummy device.
	host []netip.Addr
	// taken are the addresses of the node, with the numbers of node ports, at which another frontend answers.
	taken map[frontend]bool
}

// exactFrontends are the frontends of a snapshot at addresses of the node, such as load-balancer
// IPs. They have precedence over node ports of the same number there, as in [proxy.Route]; the
// kernel has only one virtual server at an address and port.
type exactFrontends struct {
	facts
	// of is the snapshot that was counted.
	of proxy.Snapshot
	at map[frontend]int
	// nodePorts has the node ports of the snapshot, without addresses.
	nodePorts map[frontend]int
}

func newExactFrontends(host []netip.Addr) exactFrontends {
	return exactFrontends{facts: facts{host: host}, at: map[frontend]int{}, nodePorts: map[frontend]int{}}
}

// taken returns the frontends at which no node port of a snapshot answers although one has the number. It looks
// only at what differs from the snapshot before.
func (e *exactFrontends) taken(snapshot proxy.Snapshot) map[frontend]bool {
	for c := range snapshot.Changes(e.of) {
		e.count(c.New, 1)
		e.count(c.Old, -1)
	}
	e.of = snapshot
	taken := map[frontend]bool{}
	for f := range e.at {
		if e.nodePorts[nodePortAt(f)] > 0 {
			taken[f] = true
		}
	}
	return taken
}

// nodePortAt returns the node port that has the number of a frontend.
func nodePortAt(f frontend) frontend {
	f.addr = netip.AddrPortFrom(netip.Addr{}, f.addr.Port())
	return f
}

// count counts the frontends of a service port.
func (e *exactFrontends) count(port *proxy.ServicePort, by int) {
	if port == nil {
		return
	}
	protocol := ipaddr.ProtocolNumber(port.Name.Protocol)
	for i := range port.Frontends {
		f := frontend{key{protocol: protocol, addr: port.Frontends[i].Addr}}
		switch {
		case port.Frontends[i].Kind == proxy.NodePort:
			addTo(e.nodePorts, nodePortAt(f), by)
		case slices.Contains(e.host, f.addr.Addr()):
			addTo(e.at, f, by)
		}
	}
}

// addTo changes a count.
func addTo(m map[frontend]int, f frontend, by int) {
	if m[f] += by; m[f] == 0 {
		delete(m, f)
	}
}
