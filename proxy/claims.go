package proxy

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// claims settles which service port owns an address and port that several ask
// for. The owner is the same whatever the order in which Services were heard of:
// a ClusterIP comes before a load balancer's address, and that before an external
// IP, so that nobody takes over another Service's address by writing it down; then
// the older Service wins, then the one that comes first by name.
type claims map[claimKey][]claim

type claimKey struct {
	addr     netip.AddrPort
	protocol v1.Protocol
}

type claim struct {
	port *portState
	kind FrontendKind
}

func (c claim) compare(o claim) int {
	return cmp.Or(
		cmp.Compare(standing(c.kind), standing(o.kind)),
		c.port.service.spec.created.Compare(o.port.service.spec.created),
		c.port.spec.name.Compare(o.port.spec.name),
	)
}

// standing ranks the kinds of claims by who makes them: what the cluster has
// allocated or a load balancer has reported stands above what a user wrote.
func standing(k FrontendKind) int {
	switch k {
	case ClusterIP:
		return 0
	case LoadBalancer, NodePort:
		return 1
	case ExternalIP:
	}
	return 2
}

// add enters all claims of a port. It gives the ports that have another owner
// of an address before them by it.
func (cs claims) add(p *portState) (affected []*portState) {
	for i := range p.spec.count() {
		c := p.spec.candidate(i)
		key := claimKey{c.addr, p.spec.name.Protocol}
		list := cs[key]
		mine := claim{port: p, kind: c.kind}
		at, _ := slices.BinarySearchFunc(list, mine, claim.compare)
		if at == 0 {
			affected = appendPorts(affected, list)
		}
		cs[key] = slices.Insert(list, at, mine)
	}
	return affected
}

// remove takes all claims of a port back. It gives the port that owns an
// address from now on, and those that have another owner before them.
func (cs claims) remove(p *portState) (affected []*portState) {
	for i := range p.spec.count() {
		c := p.spec.candidate(i)
		key := claimKey{c.addr, p.spec.name.Protocol}
		list := cs[key]
		at := slices.IndexFunc(list, func(o claim) bool { return o.port == p })
		if at < 0 {
			continue
		}
		if len(list) == 1 {
			delete(cs, key)
			continue
		}
		if at == 0 {
			affected = appendPorts(affected, list[1:])
		}
		cs[key] = slices.Delete(list, at, at+1)
	}
	return affected
}

func appendPorts(ports []*portState, list []claim) []*portState {
	for _, c := range list {
		ports = append(ports, c.port)
	}
	return ports
}

// owner gives the port that has an address.
func (cs claims) owner(c candidate, protocol v1.Protocol) *portState {
	if list := cs[claimKey{c.addr, protocol}]; len(list) > 0 {
		return list[0].port
	}
	return nil
}
