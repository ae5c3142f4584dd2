package proxy

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"strings"

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
	contests map[claimKey]*contest
	// handOver is called when an address changes from one owner to another.
	handOver func(key claimKey, c *contest, before *portState)
}

type claimKey struct {
	addr     netip.AddrPort
	protocol v1.Protocol
}

// Compare orders keys by address, port and protocol.
func (k claimKey) Compare(o claimKey) int {
	return cmp.Or(k.addr.Compare(o.addr), strings.Compare(string(k.protocol), string(o.protocol)))
}

// String returns the address, port and protocol.
func (k claimKey) String() string { return k.addr.String() + "/" + string(k.protocol) }

// contest has all claims to one address and port. They form a treap, whose nodes are the
// ports' claims: adding or removing one takes time logarithmic in their number.
type contest struct {
	root  *claim
	owner *claim
	// reports counts the Services whose recorded conflicts name the address.
	reports int
}

// claim is a port's claim to one of its candidates, by index.
type claim struct {
	port        *portState
	left, right *claim
	// prio is at least that of the claims below it in the treap.
	prio      uint32
	candidate uint16
	// kind is that of the candidate: looking it up is slow for very many claims.
	kind FrontendKind
	// owns says that the claim is its contest's owner.
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
		mine.port, mine.candidate, mine.kind, mine.prio = p, uint16(i), p.spec.kind(i), rand.Uint32()
		key := p.spec.claimKey(i)
		c := cs.contests[key]
		if c == nil {
			c = &contest{}
			cs.contests[key] = c
		}
		c.insert(mine)
		if c.owner == nil || mine.displaces(c.owner) {
			cs.own(key, c, mine)
		}
	}
}

// remove removes all claims of a port.
func (cs *claims) remove(p *portState) {
	for i := range p.claims {
		key := p.spec.claimKey(i)
		c := cs.contests[key]
		c.delete(&p.claims[i])
		switch {
		case c.root == nil:
			delete(cs.contests, key)
		case p.claims[i].owns:
			cs.own(key, c, c.first())
		case c.owner.port.service.spec.name == p.service.spec.name:
			// The new reading may be younger than the old one was.
			if first := c.first(); first != c.owner && first.displaces(c.owner) {
				cs.own(key, c, first)
			}
		}
	}
	p.claims = nil
}

// own makes a claim the owner of an address.
func (cs *claims) own(key claimKey, c *contest, now *claim) {
	before := c.owner
	c.owner = now
	now.owns = true
	if before != nil {
		before.owns = false
		cs.handOver(key, c, before.port)
	}
}

func (c *contest) first() *claim {
	n := c.root
	for n != nil && n.left != nil {
		n = n.left
	}
	return n
}

func (c *contest) insert(x *claim) {
	at := &c.root
	for *at != nil && (*at).prio >= x.prio {
		at = (*at).child(x)
	}
	rest := *at
	*at = x
	earlier, later := &x.left, &x.right // where to attach the parts of rest
	for rest != nil {
		if rest.compare(x) < 0 {
			*earlier = rest
			earlier, rest = &rest.right, rest.right
		} else {
			*later = rest
			later, rest = &rest.left, rest.left
		}
	}
	*earlier, *later = nil, nil
}

func (c *contest) delete(x *claim) {
	at := &c.root
	for *at != x {
		at = (*at).child(x)
	}
	left, right := x.left, x.right
	for left != nil && right != nil {
		if left.prio >= right.prio {
			*at = left
			at, left = &left.right, left.right
		} else {
			*at = right
			at, right = &right.left, right.left
		}
	}
	*at = cmp.Or(left, right)
}

// child returns the link to the subtree of c that x belongs to.
func (c *claim) child(x *claim) **claim {
	if x.compare(c) < 0 {
		return &c.left
	}
	return &c.right
}
