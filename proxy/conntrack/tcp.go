package conntrack

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// removedEndpoint is an endpoint that has been removed from the pools of a port.
type removedEndpoint struct {
	port proxy.ServicePortName
	addr netip.AddrPort
}

// planTCP adds the TCP flows to endpoints that have left the API. Endpoints that only left
// the pools stay in c.removed, with the frontends that they served.
func (c *Cleaner) planTCP(p *plan, changes []proxy.Change, new proxy.Snapshot) {
	for _, change := range changes {
		if change.Old != nil && change.Old.Name.Protocol == v1.ProtocolTCP {
			c.addRemoved(change)
		}
	}
	p.left = map[removedEndpoint][]frontendKey{}
	serving := map[proxy.ServicePortName]set[netip.AddrPort]{}
	for e, frontends := range c.removed {
		if _, known := serving[e.port]; !known {
			port, _ := new.Get(e.port)
			serving[e.port] = port.Servers()
		}
		switch {
		case serving[e.port].has(e.addr):
		case c.options.InAPI(e.port, e.addr):
			p.left[e] = frontends
		default:
			for _, at := range frontends {
				p.markStale(at, e.addr)
			}
		}
	}
}

// addRemoved adds the endpoints that left the pools of a port.
func (c *Cleaner) addRemoved(change proxy.Change) {
	_, lost := change.Endpoints()
	for _, addr := range lost {
		c.removed[removedEndpoint{change.Old.Name, addr}] = keys(change.Old)
	}
}

func (p *plan) markStale(at frontendKey, server netip.AddrPort) {
	t := p.targets[at]
	if t.removed == nil {
		t.removed = set[netip.AddrPort]{}
	}
	t.removed[server] = struct{}{}
	p.targets[at] = t
}
