package proxy

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// claims settles which service port owns an address and port that several ask
// for. The owner is the same whatever the order in which Services were heard of:
// a ClusterIP comes before a load balancer's address, and that before an external
// IP, so that naming another Service's address as external IP does not take it over;
// then the older Service wins, then the one that comes first by name.
//
// That needs creation timestamps, which objects of an API server have and those of files
// mostly lack. Of two Services of which one has none, the one that owns the address keeps it:
// a new file takes nothing from a Service that works. When the owner goes, those with a
// timestamp come first.
//
// A claim that comes or goes concerns two ports, whoever else asks for the address:
// the one that owned it, and the one that does now.
type claims struct {
	contests map[claimKey]*contest
	// handOver is called when an address that several ask for has another owner
	// than before.
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

// String gives the address, port and protocol.
func (k claimKey) String() string { return k.addr.String() + "/" + string(k.protocol) }

// contest is all claims to one address and port. They form a treap, whose nodes are parts of
// the ports: adding or removing one takes time logarithmic in their number.
type contest struct {
	root  *claim
	owner *claim
	// reports counts the Services whose report of conflicts names the address.
	reports int
}

// claim is that of one of the frontends that a port asks for, by its place among them.
type claim struct {
	port        *portState
	left, right *claim
	// prio is not lower than that of the claims below.
	prio      uint32
	candidate uint16
	// owns says that the claim is its contest's owner.
	owns bool
}

// compare puts the claim first that has the better right to the address.
func (c *claim) compare(o *claim) int {
	a, b := c.port.service, o.port.service
	if ageless := a.spec.created.IsZero(); ageless != b.spec.created.IsZero() {
		if ageless {
			return 1
		}
		return -1
	}
	if c := cmp.Compare(standing(c.kind()), standing(o.kind())); c != 0 {
		return c
	}
	return cmp.Or(a.spec.created.Compare(b.spec.created), c.port.spec.name.Compare(o.port.spec.name), cmp.Compare(a.version, b.version))
}

func (c *claim) kind() FrontendKind { return c.port.spec.kind(int(c.candidate)) }

// displaces says whether a claim takes the address from its owner. A newer version of a
// Service takes over what the older one owns.
func (c *claim) displaces(owner *claim) bool {
	a, b := c.port.service, owner.port.service
	if a != b && a.spec.name == b.spec.name {
		return a.version > b.version
	}
	return !a.spec.created.IsZero() && !b.spec.created.IsZero() && c.compare(owner) < 0
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

// add enters all claims of a port.
func (cs *claims) add(p *portState) {
	p.claims = make([]claim, p.spec.count())
	for i := range p.claims {
		mine := &p.claims[i]
		mine.port, mine.candidate, mine.prio = p, uint16(i), rand.Uint32()
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

// remove takes all claims of a port back.
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

// own gives an address to another owner.
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
		at = (*at).toward(x)
	}
	rest := *at
	*at = x
	earlier, later := &x.left, &x.right // where the parts of the rest go
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
		at = (*at).toward(x)
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

// toward gives the side of a claim on which another one has its place.
func (c *claim) toward(x *claim) **claim {
	if x.compare(c) < 0 {
		return &c.left
	}
	return &c.right
}
