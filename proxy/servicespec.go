package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// serviceSpec is the part of a Service that concerns a proxy, for all its ports and
// families.
type serviceSpec struct {
	name                         types.NamespacedName
	created                      time.Time
	affinity                     affinity.Config
	internalLocal, externalLocal bool
	healthCheckNodePort          uint16
	annotations                  map[string]string
	ports                        []portSpec
	problems                     []*Problem
}

// portSpec is one port of a Service in one family.
type portSpec struct {
	name             ServicePortName
	number, nodePort uint16
	addresses        *addresses
}

// addresses are the addresses of a Service in one family. All its ports share them: with
// a copy for each port some hundred Services would need gigabytes.
type addresses struct {
	clusterIP netip.Addr
	// external are the external IPs, then those of load balancers, each once.
	external []externalAddr
	// restricted and sources say which clients may use the load balancers' addresses.
	restricted bool
	sources    []netip.Prefix
}

type externalAddr struct {
	addr netip.Addr
	kind FrontendKind
}

// candidate is a frontend that a Service claims; another Service may own its address.
type candidate struct {
	kind       FrontendKind
	addr       netip.AddrPort
	restricted bool
	sources    []netip.Prefix
}

// count returns the number of candidates of a port.
func (p *portSpec) count() int {
	n := 1 + len(p.addresses.external)
	if p.nodePort != 0 {
		n++
	}
	return n
}

// candidate returns the candidate at an index in the order ClusterIP, external IPs,
// load-balancer IPs, node port.
func (p *portSpec) candidate(i int) candidate {
	c := candidate{kind: p.kind(i), addr: p.addr(i)}
	if c.kind == LoadBalancer {
		c.restricted, c.sources = p.addresses.restricted, p.addresses.sources
	}
	return c
}

func (p *portSpec) kind(i int) FrontendKind {
	switch external := p.addresses.external; {
	case i == 0:
		return ClusterIP
	case i > len(external):
		return NodePort
	default:
		return external[i-1].kind
	}
}

func (p *portSpec) addr(i int) netip.AddrPort {
	switch a := p.addresses; {
	case i == 0:
		return netip.AddrPortFrom(a.clusterIP, p.number)
	case i > len(a.external):
		return netip.AddrPortFrom(ipaddr.Unspecified(p.name.Family), p.nodePort)
	default:
		return netip.AddrPortFrom(a.external[i-1].addr, p.number)
	}
}

// claimKey returns the key that a candidate claims.
func (p *portSpec) claimKey(i int) claimKey { return claimKey{p.addr(i), p.name.Protocol} }

// external reports whether traffic can reach the port at another address than
// its ClusterIP.
func (p *portSpec) external() bool { return p.count() > 1 }

// equal reports whether two readings of a Service have equal content.
func (s *serviceSpec) equal(o *serviceSpec) bool {
	return s.name == o.name && s.created.Equal(o.created) && s.affinity == o.affinity &&
		s.internalLocal == o.internalLocal && s.externalLocal == o.externalLocal &&
		s.healthCheckNodePort == o.healthCheckNodePort &&
		maps.Equal(s.annotations, o.annotations) &&
		slices.EqualFunc(s.ports, o.ports, portSpec.equal) &&
		slices.EqualFunc(s.problems, o.problems, func(a, b *Problem) bool { return a.compare(b) == 0 })
}

func (p portSpec) equal(o portSpec) bool {
	return p.name == o.name && p.number == o.number && p.nodePort == o.nodePort && p.addresses.equal(o.addresses)
}

func (a *addresses) equal(o *addresses) bool {
	return a.clusterIP == o.clusterIP && a.restricted == o.restricted &&
		slices.Equal(a.sources, o.sources) && slices.Equal(a.external, o.external)
}
