package conntrack

import (
	"maps"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// maxFilters is how many frontends of one family and protocol are looked up one
// by one. Each time the kernel walks its whole table; for more frontends it is less
// work to take all flows of the protocol from it once.
const maxFilters = 8

type addrSet map[netip.AddrPort]struct{}

func (s addrSet) has(a netip.AddrPort) bool {
	_, ok := s[a]
	return ok
}

// place is where flows are sent. Node ports have the unspecified address.
type place struct {
	proto protocol
	addr  netip.AddrPort
}

func (p place) family() v1.IPFamily {
	if p.addr.Addr().Is4() {
		return v1.IPv4Protocol
	}
	return v1.IPv6Protocol
}

func (p place) isNodePort() bool { return p.addr.Addr().IsUnspecified() }

// target says which flows to a place are stale.
type target struct {
	// serving is where flows may go; nil for a frontend that is gone.
	serving addrSet
	// dead are the servers whose TCP flows go. For other protocols it is nil.
	dead addrSet
	// awaited says that TCP flows which nobody has answered go, unless they are
	// translated.
	awaited bool
	// fresh says that somebody else may have served the place before.
	fresh bool
}

func (t target) isStale(f *flow) bool {
	switch {
	case f.proto == protoTCP:
		return t.dead.has(f.server) || t.awaited && !f.translated() && f.halfOpen()
	case t.serving == nil:
		return f.translated()
	}
	return !t.serving.has(f.server)
}

// plan is what one Clean looks for.
type plan struct {
	targets map[place]target
	// ranges are service ranges that nobody has looked at before. In them, flows
	// to places that are not known and not foreign are stale.
	ranges       []netip.Prefix
	known        map[place]struct{}
	foreign      func(netip.Addr) bool
	halfOpenOnly bool
	// before and after are the nodes between which the node-port addresses
	// changed; the addresses of both follow, once they are resolved. An address of
	// both is not forsaken.
	before, after   *proxy.Node
	addrs, forsaken map[netip.Addr]struct{}
	// taken are the places at these addresses that another frontend serves
	// before node ports do.
	taken map[place]struct{}
	// condemned are the spared endpoints whose TCP flows go.
	condemned []sparedEndpoint
}

// plan finds out what to look for. Swept are the service ranges that have been
// looked at before.
func (c *Cleaner) plan(old, new proxy.Snapshot, swept []netip.Prefix) *plan {
	p := &plan{
		targets: map[place]target{}, halfOpenOnly: c.options.TCP == DropHalfOpenTCP,
		before: old.Node(), after: new.Node(), foreign: c.options.Foreign,
	}
	if new.IsZero() {
		return p
	}
	changes := slices.Collect(new.Changes(old))
	for _, change := range changes {
		if change.Old != nil && isLasting(change.Old) {
			p.expectGone(change.Old)
		}
	}
	for _, change := range changes {
		if change.New != nil && isLasting(change.New) {
			p.replace(change.Old, change.New)
		}
	}
	if !old.IsZero() && !sameNodePorts(p.before, p.after) {
		p.expectNodePorts(new, c.options.TCP != KeepTCP)
	}
	if p.foreign != nil {
		p.expectRanges(new, swept)
	}
	c.planTCP(p, changes, new)
	return p
}

// serviceCIDRs gives the service ranges of a snapshot; none of the zero one.
func serviceCIDRs(s proxy.Snapshot) []netip.Prefix {
	if s.Node() == nil {
		return nil
	}
	return s.Node().ServiceCIDRs
}

// expectRanges looks for flows to Services that are gone since before anything was
// known, in the service ranges that have not been looked at.
func (p *plan) expectRanges(s proxy.Snapshot, swept []netip.Prefix) {
	for _, r := range serviceCIDRs(s) {
		if !slices.Contains(swept, r) {
			p.ranges = append(p.ranges, r)
		}
	}
	if len(p.ranges) == 0 {
		return
	}
	p.known = map[place]struct{}{}
	for port := range s.All() {
		for _, f := range port.Frontends {
			p.known[place{protocolOf(port.Name.Protocol), f.Addr}] = struct{}{}
		}
	}
}

// isLasting reports whether flows of a port's protocol outlive their endpoint.
func isLasting(p *proxy.ServicePort) bool {
	return p.Name.Protocol == v1.ProtocolUDP || p.Name.Protocol == v1.ProtocolSCTP
}

// expectGone takes all frontends of a port for gone.
func (p *plan) expectGone(port *proxy.ServicePort) {
	for _, f := range port.Frontends {
		p.targets[place{protocolOf(port.Name.Protocol), f.Addr}] = target{}
	}
}

// expectNodePorts looks at all node ports, as they are new at some addresses; at those
// of TCP if they are not to be left alone.
func (p *plan) expectNodePorts(s proxy.Snapshot, withTCP bool) {
	for port := range s.All() {
		t := target{awaited: true}
		if isLasting(port) {
			t = target{serving: servers(port), fresh: true}
		} else if !withTCP {
			continue
		}
		for _, f := range port.Frontends {
			if f.Kind == proxy.NodePort {
				p.targets[place{protocolOf(port.Name.Protocol), f.Addr}] = t
			}
		}
	}
}

// replace looks at the frontends of a changed port: at all where an endpoint is
// gone, and else at the new ones only.
func (p *plan) replace(old, new *proxy.ServicePort) {
	serving := servers(new)
	had, isGrown := addrSet{}, true
	if old != nil {
		isGrown = containsAll(serving, servers(old))
		for _, f := range old.Frontends {
			had[f.Addr] = struct{}{}
		}
	}
	for _, f := range new.Frontends {
		at := place{protocolOf(new.Name.Protocol), f.Addr}
		if isGrown && had.has(f.Addr) {
			delete(p.targets, at)
		} else {
			p.targets[at] = target{serving: serving, fresh: !had.has(f.Addr)}
		}
	}
}

// servers gives the endpoints that flows may go to; never nil.
func servers(p *proxy.ServicePort) addrSet {
	s := make(addrSet, len(p.Cluster))
	for _, list := range [...][]*endpoints.Endpoint{p.Cluster, p.Local, p.Draining} {
		for _, e := range list {
			s[e.Addr] = struct{}{}
		}
	}
	return s
}

func containsAll(set, subset addrSet) bool {
	for a := range subset {
		if !set.has(a) {
			return false
		}
	}
	return true
}

// isStale decides about one flow, whatever filter it came through.
func (p *plan) isStale(f flow) bool {
	if f.proto == protoTCP && p.halfOpenOnly && !f.halfOpen() {
		return false
	}
	if t, ok := p.targets[place{f.proto, f.dest}]; ok {
		return t.isStale(&f)
	}
	port := netip.AddrPortFrom(unspecified(f.dest.Addr()), f.dest.Port())
	if _, taken := p.taken[place{f.proto, f.dest}]; taken {
		return false
	}
	if t, ok := p.targets[place{f.proto, port}]; ok {
		if _, ours := p.addrs[f.dest.Addr()]; ours {
			return t.isStale(&f)
		}
		if _, were := p.forsaken[f.dest.Addr()]; were {
			return f.proto != protoTCP && f.translated()
		}
	}
	return f.proto != protoTCP && f.translated() && p.isForsaken(f)
}

// isForsaken reports whether a flow goes to a service range where nobody is.
func (p *plan) isForsaken(f flow) bool {
	_, isKnown := p.known[place{f.proto, f.dest}]
	return !isKnown && slices.ContainsFunc(p.ranges, func(r netip.Prefix) bool { return r.Contains(f.dest.Addr()) }) &&
		!p.foreign(f.dest.Addr())
}

// isStaleAnswer decides about a flow that began with an answer from a place that
// somebody else served.
func (p *plan) isStaleAnswer(f flow) bool {
	if f.translated() {
		return false
	}
	if t, ok := p.targets[place{f.proto, f.source}]; ok {
		return t.fresh
	}
	_, ours := p.addrs[f.source.Addr()]
	port := netip.AddrPortFrom(unspecified(f.source.Addr()), f.source.Port())
	return ours && p.targets[place{f.proto, port}].fresh
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// frontends gives the number of targets of one family.
func (p *plan) frontends(family v1.IPFamily) int {
	n := 0
	for at := range p.targets {
		if at.family() == family {
			n++
		}
	}
	return n
}

// filters gives the dumps that show all flows of interest in one family.
func (p *plan) filters(family v1.IPFamily) []filter {
	all := filtersOf(p.targets, family)
	inFamily := func(r netip.Prefix) bool { return r.Addr().Is4() == (family == v1.IPv4Protocol) }
	if !slices.ContainsFunc(p.ranges, inFamily) {
		return all
	}
	isLasting := func(f filter) bool { return f.proto != protoTCP }
	return append(slices.DeleteFunc(all, isLasting), filter{family: family, proto: protoUDP}, filter{family: family, proto: protoSCTP})
}

// answerFilters gives the dumps that show what isStaleAnswer looks for.
func (p *plan) answerFilters(family v1.IPFamily) []filter {
	fresh := map[place]struct{}{}
	for at, t := range p.targets {
		if t.fresh {
			fresh[at] = struct{}{}
		}
	}
	all := filtersOf(fresh, family)
	for i := range all {
		all[i].bySource = true
	}
	return all
}

// filtersOf gives the dumps that show all flows to some places of one family.
func filtersOf[V any](places map[place]V, family v1.IPFamily) []filter {
	groups := map[filter][]filter{}
	for at := range places {
		if at.family() != family {
			continue
		}
		group := filter{family: family, proto: at.proto}
		one := group
		one.port = at.addr.Port()
		if !at.isNodePort() {
			one.addr = at.addr.Addr()
		}
		groups[group] = append(groups[group], one)
	}
	var all []filter
	for group, single := range groups {
		if len(single) > maxFilters {
			single = []filter{group}
		}
		all = append(all, single...)
	}
	return all
}

// resolveNodePorts finds out which addresses node ports answer at, and which they
// did answer at. Without node ports it does not ask.
func (p *plan) resolveNodePorts(t table, new proxy.Snapshot) error {
	if !slices.ContainsFunc(slices.Collect(maps.Keys(p.targets)), place.isNodePort) {
		return nil
	}
	local, err := t.localAddresses()
	if err != nil {
		return err
	}
	p.addrs, p.forsaken = nodePortAddrs(p.after, local), nodePortAddrs(p.before, local)
	p.taken = map[place]struct{}{}
	for port := range new.All() {
		for _, f := range port.Frontends {
			_, isNodes := p.addrs[f.Addr.Addr()]
			if _, was := p.forsaken[f.Addr.Addr()]; isNodes || was {
				p.taken[place{protocolOf(port.Name.Protocol), f.Addr}] = struct{}{}
			}
		}
	}
	return nil
}

func nodePortAddrs(n *proxy.Node, local []netip.Addr) map[netip.Addr]struct{} {
	all := map[netip.Addr]struct{}{}
	if n == nil {
		return all
	}
	for _, a := range slices.Concat(local, n.Addresses) {
		isChosen := n.NodePorts.All || slices.ContainsFunc(n.NodePorts.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
		if isChosen && !a.IsLoopback() {
			all[a] = struct{}{}
		}
	}
	return all
}

func sameNodePorts(a, b *proxy.Node) bool {
	return a == b || a.NodePorts.Equal(b.NodePorts) && slices.Equal(a.Addresses, b.Addresses)
}
