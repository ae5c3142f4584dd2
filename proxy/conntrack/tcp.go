package conntrack

import (
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// sparedEndpoint is an endpoint that has left the pools of a port.
type sparedEndpoint struct {
	port proxy.ServicePortName
	addr netip.AddrPort
}

// planTCP adds the TCP flows to endpoints that have left the API, and those that
// began before their frontend was there. What has left the pools only is noted, to
// be looked at again.
func (c *Cleaner) planTCP(p *plan, changes []proxy.Change, new proxy.Snapshot) {
	if c.options.TCP == KeepTCP {
		return
	}
	for _, change := range changes {
		if change.Old != nil && change.Old.Name.Protocol == v1.ProtocolTCP {
			c.spare(change)
		}
		if change.New != nil && change.New.Name.Protocol == v1.ProtocolTCP {
			p.await(change.Old, change.New)
		}
	}
	for e, places := range c.spared {
		if isServing(new, e) || c.options.InAPI(e.port, e.addr) {
			continue
		}
		p.condemned = append(p.condemned, e)
		for _, at := range places {
			p.condemn(place{protoTCP, at}, e.addr)
		}
	}
}

func (c *Cleaner) spare(change proxy.Change) {
	now := addrSet{}
	if change.New != nil {
		now = servers(change.New)
	}
	for addr := range servers(change.Old) {
		if now.has(addr) {
			continue
		}
		var places []netip.AddrPort
		for _, f := range change.Old.Frontends {
			places = append(places, f.Addr)
		}
		c.spared[sparedEndpoint{change.Old.Name, addr}] = places
	}
}

// await looks for clients that were at the new frontends of a port before these were
// there. The kernel does not translate their flows any more, though what they send
// comes from the same ports again.
func (p *plan) await(old, new *proxy.ServicePort) {
	for _, f := range new.Frontends {
		isNew := old == nil || !slices.ContainsFunc(old.Frontends, func(o proxy.Frontend) bool { return o.Addr == f.Addr })
		if isNew {
			p.targets[place{protoTCP, f.Addr}] = target{awaited: true} // the dead come later
		}
	}
}

func (p *plan) condemn(at place, server netip.AddrPort) {
	t := p.targets[at]
	if t.dead == nil {
		t.dead = addrSet{}
	}
	t.dead[server] = struct{}{}
	p.targets[at] = t
}

// forget drops what needs no further look: endpoints that came back, and those
// whose flows have been removed.
func (c *Cleaner) forget(p *plan, new proxy.Snapshot) {
	for _, e := range p.condemned {
		delete(c.spared, e)
	}
	for e := range c.spared {
		if isServing(new, e) {
			delete(c.spared, e)
		}
	}
}

// isDue reports whether an endpoint that was spared has left the API, or flows that were
// offloaded may no longer be.
func (c *Cleaner) isDue() bool {
	if !c.retry.IsZero() && !time.Now().Before(c.retry) {
		return true
	}
	for e := range c.spared {
		if !c.options.InAPI(e.port, e.addr) {
			return true
		}
	}
	return false
}

func isServing(s proxy.Snapshot, e sparedEndpoint) bool {
	p, ok := s.Get(e.port)
	return ok && servers(p).has(e.addr)
}
