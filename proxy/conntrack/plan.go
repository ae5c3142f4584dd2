package conntrack

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

type set[K comparable] map[K]struct{}

func (s set[K]) has(k K) bool {
	_, ok := s[k]
	return ok
}

// frontendKey identifies a frontend. Node ports have the unspecified address.
type frontendKey struct {
	proto protocol
	addr  netip.AddrPort
}

func (k frontendKey) isNodePort() bool { return k.addr.Addr().IsUnspecified() }

// nodePort returns the key of the node port that a flow to k may use.
func (k frontendKey) nodePort() frontendKey {
	return frontendKey{k.proto, netip.AddrPortFrom(ipaddr.Unspecified(ipaddr.FamilyOf(k.addr.Addr())), k.addr.Port())}
}

// target says which flows to a frontend are stale. The zero target is a removed frontend:
// its translated flows are stale.
type target struct {
	// owner decides about flows; nil if the frontend was removed.
	owner *owner
	// before has the endpoints before the change; nil if they did not change.
	before set[netip.AddrPort]
	// isNew says that another program may have served the frontend before.
	isNew bool
}

func (t target) isStale(f *flow, p *plan) bool {
	switch {
	case t.owner == nil:
		return f.translated()
	case !t.isNew && !f.translated() && !t.before.has(f.server):
		return false // Backend userspace may have captured it: see carried.
	case f.carried() && (!t.isNew || p.again):
		return !t.owner.any(f, &p.origins, func(r proxy.TrafficRoute) bool { return r.Action == proxy.Forward })
	}
	return !t.owner.any(f, &p.origins, func(r proxy.TrafficRoute) bool { return t.owner.allowed.of(r).has(f.server) })
}

// plan is what one Clean looks for.
type plan struct {
	options *Options
	targets map[frontendKey]target
	// ranges are service ranges that have not been swept before. In them, flows to
	// addresses that have no frontend and are not foreign are stale.
	ranges []netip.Prefix
	// frontends are the frontends of all service ports.
	frontends set[frontendKey]
	// nodePortAddrs are the addresses at which node ports are served (true), or were (false).
	nodePortAddrs map[netip.Addr]bool
	origins       origins
	// again says that this process has cleaned before, so flows that userspace carries are its own.
	again bool
	// retried is that of the step. late says that a reply to a removed flow may come after this Clean.
	retried, late bool
}

// plan returns what to look for.
func (c *Cleaner) plan(s step) (*plan, error) {
	old, new := s.old, s.new
	p := &plan{
		options: &c.options, targets: map[frontendKey]target{}, frontends: set[frontendKey]{}, nodePortAddrs: map[netip.Addr]bool{},
		origins: origins{node: new.Node(), local: set[netip.Addr]{}}, again: s.again, retried: s.retried,
	}
	if new.IsZero() {
		return p, nil
	}
	changes := slices.Collect(new.Changes(old))
	changes = slices.DeleteFunc(changes, onlyGrows)
	for _, change := range changes {
		for _, at := range keys(change.Old) {
			p.targets[at] = target{}
		}
	}
	for _, change := range changes {
		p.replace(change)
	}
	if !old.IsZero() {
		p.addByNode(old.Node(), new)
	}
	if c.options.Foreign != nil {
		p.ranges = slices.DeleteFunc(slices.Clone(serviceCIDRs(new)), func(r netip.Prefix) bool { return slices.Contains(s.swept, r) })
	}
	return p, p.resolve(c.table, old.Node(), new)
}

// onlyGrows reports whether a port has all endpoints to which its flows went before, and so no stale flow.
func onlyGrows(c proxy.Change) bool {
	sameClients := func(a, b proxy.Frontend) bool {
		a.FromInside, a.FromOutside = b.FromInside, b.FromOutside
		return a.Equal(b)
	}
	if !concerns(c.Old) || !concerns(c.New) || !slices.EqualFunc(c.Old.Frontends, c.New.Frontends, sameClients) {
		return false
	}
	before, now := newAllowed(c.Old), newAllowed(c.New)
	keeps := func(old, new proxy.TrafficRoute) bool {
		for server := range before.of(old) {
			if !now.of(new).has(server) {
				return false
			}
		}
		return true
	}
	for i := range c.New.Frontends {
		pod1, node1, outside1 := c.Old.Frontends[i].Routes()
		pod2, node2, outside2 := c.New.Frontends[i].Routes()
		if !keeps(pod1, pod2) || !keeps(node1, node2) || !keeps(outside1, outside2) {
			return false
		}
	}
	return true
}

// serviceCIDRs returns the service ranges of a snapshot; none of the zero one.
func serviceCIDRs(s proxy.Snapshot) []netip.Prefix {
	if s.Node() == nil {
		return nil
	}
	return s.Node().ServiceCIDRs
}

func sameNodePorts(a, b *proxy.Node) bool {
	return a == b || a.NodePorts.Equal(b.NodePorts) && slices.Equal(a.Addresses, b.Addresses)
}

// keys returns the keys of all frontends of a port of UDP or SCTP; none for nil.
func keys(p *proxy.ServicePort) (all []frontendKey) {
	if concerns(p) {
		for _, f := range p.Frontends {
			all = append(all, frontendKey{protocolOf(p.Name.Protocol), f.Addr})
		}
	}
	return all
}

// replace adds the frontends of a changed port.
func (p *plan) replace(change proxy.Change) {
	if !concerns(change.New) {
		return
	}
	had, before, now := keys(change.Old), change.Old.Servers(), newAllowed(change.New)
	for i := range change.New.Frontends {
		f := &change.New.Frontends[i]
		at := keyOf(change.New, f)
		p.targets[at] = target{owner: &owner{f, now}, before: before, isNew: !slices.Contains(had, at)}
	}
}

func keyOf(p *proxy.ServicePort, f *proxy.Frontend) frontendKey {
	return frontendKey{protocolOf(p.Name.Protocol), f.Addr}
}

// addByNode adds the frontends whose flows a change of the Node concerns: all node ports if they are new at some
// addresses, and all frontends with several routes if the criterion for pods is another one.
func (p *plan) addByNode(old *proxy.Node, s proxy.Snapshot) {
	nodePorts, routes := !sameNodePorts(old, s.Node()), !old.LocalTraffic.Equal(s.Node().LocalTraffic)
	if !nodePorts && !routes {
		return
	}
	for port := range s.All() {
		if !concerns(port) {
			continue
		}
		now := newAllowed(port)
		for i := range port.Frontends {
			f := &port.Frontends[i]
			at := keyOf(port, f)
			isNew := nodePorts && at.isNodePort()
			if isNew || routes && !isUniform(f) {
				p.targets[at] = target{owner: &owner{f, now}, isNew: isNew || p.targets[at].isNew}
			}
		}
	}
}

// concerns reports whether flows to a port may be stale: clients of TCP notice a change by themselves.
func concerns(port *proxy.ServicePort) bool {
	return port != nil && port.Name.Protocol != v1.ProtocolTCP
}

// resolve finds all frontends, the addresses of the node, and the addresses of node ports, if there is anything to look for.
func (p *plan) resolve(t interfaces, before *proxy.Node, new proxy.Snapshot) error {
	if len(p.targets)+len(p.ranges) == 0 {
		return nil
	}
	local, err := t.localAddresses()
	if err != nil {
		return err
	}
	for _, a := range local {
		p.origins.local[a] = struct{}{}
	}
	p.addNodePortAddrs(before, local, false)
	p.addNodePortAddrs(new.Node(), local, true)
	for port := range new.All() {
		for _, at := range keys(port) {
			p.frontends[at] = struct{}{}
		}
	}
	return nil
}

func (p *plan) addNodePortAddrs(n *proxy.Node, local []netip.Addr, isServed bool) {
	if n == nil {
		return
	}
	for _, a := range slices.Concat(local, n.Addresses) {
		if n.NodePorts.Contains(a) || slices.Contains(n.NodePorts.LoopbackAddresses(), a) {
			p.nodePortAddrs[a] = isServed
		}
	}
}

// find returns the target of an address: its own, or that of the node port there.
func (p *plan) find(at frontendKey) (target, bool) {
	t, ok := p.targets[at]
	if p.frontends.has(at) {
		return t, ok
	}
	isServed, isNodePort := p.nodePortAddrs[at.addr.Addr()]
	nodePort, hasNodePort := p.targets[at.nodePort()]
	switch {
	case hasNodePort && isServed:
		return nodePort, true // also if a frontend of its own was removed: IPVS has one for each address
	case ok:
		return t, true
	}
	return target{}, hasNodePort && isNodePort
}

// isStale decides about one flow.
func (p *plan) isStale(f flow) bool {
	at := frontendKey{f.proto, f.dest}
	if f.dest.Addr().IsLoopback() && !f.translated() {
		return false // A process of the node answers there.
	}
	if t, ok := p.find(at); ok {
		return t.isStale(&f, p)
	}
	return (target{}).isStale(&f, p) && p.isUnowned(at)
}

// isUnowned reports whether an address in a new service range has no frontend.
func (p *plan) isUnowned(at frontendKey) bool {
	addr := at.addr.Addr()
	return !p.frontends.has(at) && slices.ContainsFunc(p.ranges, func(r netip.Prefix) bool { return r.Contains(addr) }) && !p.options.Foreign(addr)
}

// isStaleReply decides about a flow that began with a reply from a frontend that
// another program served. Tracking may begin, or a flow be removed, between a packet and
// the reply of the program that served the address before. To the kernel the reply is
// then a new flow, from the address, to which all further packets of the client belong:
// no endpoint would ever get them.
func (p *plan) isStaleReply(f flow) bool {
	t, _ := p.find(frontendKey{f.proto, f.source})
	return t.isNew && !f.translated()
}

// wanted returns the protocols of one family of which flows may be stale, and the number of frontends whose flows may be.
func (p *plan) wanted(family v1.IPFamily) (protocols []protocol, frontends int) {
	isNew := slices.ContainsFunc(p.ranges, func(r netip.Prefix) bool { return ipaddr.FamilyOf(r.Addr()) == family })
	for _, proto := range [...]protocol{protoUDP, protoSCTP} {
		before := frontends
		for at := range p.targets {
			if at.proto == proto && ipaddr.FamilyOf(at.addr.Addr()) == family {
				frontends++
			}
		}
		if isNew || frontends > before {
			protocols = append(protocols, proto)
		}
	}
	return protocols, frontends
}
