package health

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// counts are the Services that have a health check node port.
type counts map[types.NamespacedName]*service

// service is one Service of this kind.
type service struct {
	port uint16
	// ports are its service ports. Their health check node ports agree unless one of them could not be programmed.
	ports map[proxy.ServicePortName]*proxy.ServicePort
}

// update follows changes, and reports whether the port of a Service has changed.
func (c counts) update(changes iter.Seq[proxy.Change]) (isMoved bool) {
	touched := map[types.NamespacedName]*service{}
	set := func(p *proxy.ServicePort, isThere bool) {
		if p == nil || p.HealthCheckNodePort == 0 {
			return
		}
		s := c[p.Name.NamespacedName]
		if s == nil {
			s = &service{ports: map[proxy.ServicePortName]*proxy.ServicePort{}}
			c[p.Name.NamespacedName] = s
		}
		if delete(s.ports, p.Name); isThere {
			s.ports[p.Name] = p
		}
		touched[p.Name.NamespacedName] = s
	}
	for change := range changes {
		set(change.Old, false)
		set(change.New, true)
	}
	for name, s := range touched {
		if s.choosePort() {
			isMoved = true
		}
		if s.port == 0 {
			delete(c, name)
		}
	}
	return isMoved
}

// choosePort keeps the port while one of the service ports has it, and else takes the highest. It reports whether the
// port has changed.
func (s *service) choosePort() (isMoved bool) {
	highest := uint16(0)
	for _, p := range s.ports {
		if p.HealthCheckNodePort == s.port {
			return false
		}
		highest = max(highest, p.HealthCheckNodePort)
	}
	s.port = highest
	return true
}

// portsOf returns the service ports of a Service, none if it is not known.
func (c counts) portsOf(name types.NamespacedName) []*proxy.ServicePort {
	s := c[name]
	if s == nil {
		return nil
	}
	return slices.Collect(maps.Values(s.ports))
}

// readyLocal returns the number of ready local endpoints of a Service for requests of one family. A single-stack
// Service has only one.
func readyLocal(ports []*proxy.ServicePort, family v1.IPFamily) int {
	all := map[v1.IPFamily]map[netip.Addr]struct{}{}
	for _, p := range ports {
		if all[p.Name.Family] == nil {
			all[p.Name.Family] = map[netip.Addr]struct{}{}
		}
		for _, e := range p.Local {
			if e.Local && e.Ready {
				all[p.Name.Family][e.Addr.Addr()] = struct{}{}
			}
		}
	}
	if own := all[family]; own != nil {
		return len(own)
	}
	for _, other := range all {
		return len(other)
	}
	return 0
}
