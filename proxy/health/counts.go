package health

import (
	"iter"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// counts are the ready local endpoints of the Services that have a health check
// node port.
type counts map[types.NamespacedName]*service

// service is one Service of this kind.
type service struct {
	port uint16
	// claims counts the service ports by health check node port. They agree
	// unless one of them could not be programmed.
	claims   map[uint16]int
	families map[v1.IPFamily]*familyCount // those with service ports
}

// familyCount counts the service ports and endpoints of a Service in one family.
type familyCount struct {
	ports int
	// addrs counts for each address of an endpoint the service ports that have it.
	addrs map[netip.Addr]int
}

// update counts changes, and reports whether the port of a Service has changed.
func (c counts) update(changes iter.Seq[proxy.Change]) (isMoved bool) {
	touched := map[types.NamespacedName]*service{}
	add := func(p *proxy.ServicePort, by int) {
		if p != nil && p.HealthCheckNodePort != 0 {
			s := c[p.Name.NamespacedName]
			if s == nil {
				s = &service{claims: map[uint16]int{}, families: map[v1.IPFamily]*familyCount{}}
				c[p.Name.NamespacedName] = s
			}
			s.add(p, by)
			touched[p.Name.NamespacedName] = s
		}
	}
	for change := range changes {
		add(change.Old, -1)
		add(change.New, +1)
	}
	for name, s := range touched {
		if s.claims[s.port] == 0 {
			s.port = 0
			for port := range s.claims {
				s.port = max(s.port, port)
			}
			isMoved = true
		}
		if s.port == 0 {
			delete(c, name)
		}
	}
	return isMoved
}

// add counts a service port that is added (+1) or removed (-1).
func (s *service) add(p *proxy.ServicePort, by int) {
	addTo(s.claims, p.HealthCheckNodePort, by)
	f := s.families[p.Name.Family]
	if f == nil {
		f = &familyCount{addrs: map[netip.Addr]int{}}
		s.families[p.Name.Family] = f
	}
	if f.ports += by; f.ports == 0 {
		delete(s.families, p.Name.Family)
	}
	for _, e := range p.Local {
		if e.Local && e.Ready {
			addTo(f.addrs, e.Addr.Addr(), by)
		}
	}
}

func addTo[K comparable](m map[K]int, key K, by int) {
	if m[key] += by; m[key] == 0 {
		delete(m, key)
	}
}

// of returns the number of endpoints for requests of one family.
func (s *service) of(family v1.IPFamily) int {
	if s == nil {
		return 0
	}
	if own := s.families[family]; own != nil {
		return len(own.addrs)
	}
	for _, other := range s.families {
		return len(other.addrs)
	}
	return 0
}
