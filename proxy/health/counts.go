package health

import (
	"iter"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// counts are the ready local endpoints of the Services that have a health check
// node port. They are kept by what changes.
type counts struct {
	services map[types.NamespacedName]*service
	// moved are the Services whose port is another than it was when somebody
	// looked last.
	moved map[types.NamespacedName]struct{}
}

// service is one Service of this kind.
type service struct {
	port uint16
	// claims counts the service ports by health check node port. They agree
	// unless one of them could not be programmed.
	claims   map[uint16]int
	families [2]familyCount // IPv4, IPv6
}

// familyCount is what a Service has in one family.
type familyCount struct {
	ports int
	// addrs counts for each address of an endpoint the service ports that have it.
	addrs map[netip.Addr]int
}

func (c *counts) update(changes iter.Seq[proxy.Change]) {
	touched := map[types.NamespacedName]struct{}{}
	add := func(p *proxy.ServicePort, by int) {
		if p != nil && p.HealthCheckNodePort != 0 {
			touched[p.Name.NamespacedName] = struct{}{}
			c.service(p.Name.NamespacedName).add(p, by)
		}
	}
	for change := range changes {
		add(change.Old, -1)
		add(change.New, +1)
	}
	for name := range touched {
		s := c.services[name]
		if s.claims[s.port] == 0 {
			s.port = 0
			for port := range s.claims {
				s.port = max(s.port, port)
			}
			c.moved[name] = struct{}{}
		}
		if s.port == 0 {
			delete(c.services, name)
		}
	}
}

func (c *counts) service(name types.NamespacedName) *service {
	s := c.services[name]
	if s == nil {
		s = &service{claims: map[uint16]int{}}
		for i := range s.families {
			s.families[i].addrs = map[netip.Addr]int{}
		}
		c.services[name] = s
	}
	return s
}

// add takes that a service port comes (+1) or goes (-1).
func (s *service) add(p *proxy.ServicePort, by int) {
	addTo(s.claims, p.HealthCheckNodePort, by)
	f := &s.families[index(p.Name.Family)]
	f.ports += by
	for _, e := range localCandidates(p) {
		if e.Local && e.Ready {
			addTo(f.addrs, e.Addr.Addr(), by)
		}
	}
}

// localCandidates gives the list that has all local endpoints that are ready.
// The local pool has, where a frontend needs it.
func localCandidates(p *proxy.ServicePort) []*endpoints.Endpoint {
	if p.Local != nil {
		return p.Local
	}
	return p.Cluster
}

func addTo[K comparable](m map[K]int, key K, by int) {
	if m[key] += by; m[key] == 0 {
		delete(m, key)
	}
}

// of gives the number of endpoints for those who ask by one family.
func (s *service) of(family v1.IPFamily) int {
	if s == nil {
		return 0
	}
	own, other := &s.families[index(family)], &s.families[1-index(family)]
	if own.ports == 0 {
		own = other
	}
	return len(own.addrs)
}

func index(f v1.IPFamily) int {
	if f == v1.IPv6Protocol {
		return 1
	}
	return 0
}
