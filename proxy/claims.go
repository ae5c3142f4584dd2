package proxy

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// claims decides which service port owns an address and port that several claim.
// The order in which the Services arrive does not matter: a ClusterIP has precedence
// over a load balancer's address, and that over an external IP, so that a Service
// cannot take over another one's address by naming it as external IP; then the older
// Service wins, then the first by name.
//
// That needs creation timestamps, which objects of an API server have and those of files
// mostly lack. Of two Services of which one has none, the owner keeps the address: a new
// file takes nothing from a Service that works. When the owner is removed, Services
// with a timestamp have precedence.
//
// Adding or removing a claim affects two ports at most, however many claim the address:
// the old owner and the new one.
type claims struct {
	owners map[claimKey]*claim
	// rivals are the claims to an address that another claim owns, the one with precedence first.
	rivals map[claimKey][]*claim
	// handOver is called when an address changes from one owner to another.
	handOver func(before, now *portState)
}

type claimKey struct {
	addr     netip.AddrPort
	protocol v1.Protocol
}

// String returns the address, port and protocol.
func (k claimKey) String() string { return k.addr.String() + "/" + string(k.protocol) }

// claim is a port's claim to one of its candidates, by index.
type claim struct {
	port *portState
	// kind is that of the candidate: looking it up is slow for very many claims.
	kind FrontendKind
	// owns says that the claim owns the address.
	owns bool
}

// compare orders claims: the one with precedence for the address is first.
func (c *claim) compare(o *claim) int {
	a, b := c.port.service, o.port.service
	if ageless := a.spec.created.IsZero(); ageless != b.spec.created.IsZero() {
		if ageless {
			return 1
		}
		return -1
	}
	if c := cmp.Compare(rank(c.kind), rank(o.kind)); c != 0 {
		return c
	}
	return cmp.Or(a.spec.created.Compare(b.spec.created), c.port.spec.name.Compare(o.port.spec.name), cmp.Compare(a.version, b.version))
}

// displaces reports whether c takes the address from its owner. A newer reading of a
// Service takes over what the older one owns.
func (c *claim) displaces(owner *claim) bool {
	a, b := c.port.service, owner.port.service
	if a != b && a.spec.name == b.spec.name {
		return a.version > b.version
	}
	return !a.spec.created.IsZero() && !b.spec.created.IsZero() && c.compare(owner) < 0
}

// rank orders the kinds of claims by the origin of the address: what the cluster
// allocated or a load balancer reported has precedence over what a user wrote.
func rank(k FrontendKind) int {
	switch k {
	case ClusterIP:
		return 0
	case LoadBalancer, NodePort:
		return 1
	case ExternalIP:
	}
	return 2
}

// add adds all claims of a port.
func (cs *claims) add(p *portState) {
	p.claims = make([]claim, p.spec.count())
	for i := range p.claims {
		mine := &p.claims[i]
		mine.port, mine.kind = p, p.spec.kind(i)
		key := p.spec.claimKey(i)
		owner := cs.owners[key]
		if owner != nil && !mine.displaces(owner) {
			cs.wait(key, mine)
			continue
		}
		cs.own(key, mine)
		if owner != nil {
			cs.wait(key, owner)
		}
	}
}

// remove removes all claims of a port.
func (cs *claims) remove(p *portState) {
	for i := range p.claims {
		mine := &p.claims[i]
		key := p.spec.claimKey(i)
		if !mine.owns {
			cs.withdraw(key, mine)
		}
		owner := cs.owners[key]
		var first *claim
		if others := cs.rivals[key]; len(others) > 0 {
			first = others[0]
		}
		switch {
		case mine.owns && first == nil:
			delete(cs.owners, key)
		case mine.owns:
			cs.withdraw(key, first)
			cs.own(key, first)
		case first != nil && owner.port.service.spec.name == p.service.spec.name && first.displaces(owner):
			// The new reading is younger than the old one was.
			cs.withdraw(key, first)
			cs.own(key, first)
			cs.wait(key, owner)
		}
	}
	p.claims = nil
}

// own makes a claim the owner of an address.
func (cs *claims) own(key claimKey, now *claim) {
	before := cs.owners[key]
	cs.owners[key] = now
	now.owns = true
	if before != nil {
		before.owns = false
		cs.handOver(before.port, now.port)
	}
}

// wait adds a claim to an address that another one owns.
func (cs *claims) wait(key claimKey, c *claim) {
	at, _ := slices.BinarySearchFunc(cs.rivals[key], c, (*claim).compare)
	cs.rivals[key] = slices.Insert(cs.rivals[key], at, c)
}

// withdraw removes a claim that waits.
func (cs *claims) withdraw(key claimKey, c *claim) {
	at, _ := slices.BinarySearchFunc(cs.rivals[key], c, (*claim).compare)
	if cs.rivals[key] = slices.Delete(cs.rivals[key], at, at+1); len(cs.rivals[key]) == 0 {
		delete(cs.rivals, key)
	}
}
