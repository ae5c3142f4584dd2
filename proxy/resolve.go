package proxy

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
)

// draining returns the endpoints that are ready or serving and not selected.
func draining(all []*endpoints.Endpoint, sel *endpoints.Selection) (out []*endpoints.Endpoint) {
	cluster, local := sel.Cluster, sel.Local
	for _, e := range all {
		isSelected := false
		for _, pool := range [...]*[]*endpoints.Endpoint{&cluster, &local} {
			if len(*pool) > 0 && (*pool)[0] == e {
				*pool, isSelected = (*pool)[1:], true
			}
		}
		if !isSelected && (e.Ready || e.Serving) {
			out = append(out, e)
		}
	}
	return out
}

// portRoutes are the routes of all frontends of one service port: those of the
// ClusterIP follow the internal traffic policy, all others the external one.
type portRoutes struct {
	internalFromInside, internalFromOutside TrafficRoute
	externalFromInside, externalFromOutside TrafficRoute
}

// resolve makes the service port as this node must program it, from the Service,
// its current endpoints and the conflicts with other Services.
func (t *ServiceChangeTracker) resolve(p *portState) *ServicePort {
	svc, spec := p.service.spec, p.spec
	all := t.cache.Endpoints(p.spec.name)
	sel := t.cache.Select(p.spec.name, t.policy(p))
	out := &ServicePort{
		Name:                spec.name,
		Cluster:             sel.Cluster,
		Local:               sel.Local,
		Affinity:            svc.affinity,
		InternalLocal:       svc.internalLocal,
		ExternalLocal:       svc.externalLocal,
		HasEndpoints:        sel.Any,
		HealthCheckNodePort: svc.healthCheckNodePort,
		Annotations:         svc.annotations,
	}
	if spec.name.Protocol != v1.ProtocolTCP {
		out.Draining = draining(all, &sel)
	}
	routes := t.routes(p, &sel)
	if p.frontends == nil || routes != p.routes {
		p.frontends, p.routes = t.frontends(p, routes), routes
	}
	out.Frontends = t.withinLimit(p, max(len(sel.Cluster), len(sel.Local)))
	return out
}

// policy returns the selections that the routes of a port may use.
func (t *ServiceChangeTracker) policy(p *portState) endpoints.Policy {
	svc, external := p.service.spec, p.spec.external()
	return endpoints.Policy{
		Cluster:       !svc.internalLocal || external,
		Local:         svc.internalLocal || svc.externalLocal && external || svc.healthCheckNodePort != 0,
		LocalFallback: t.options.LocalFallback,
	}
}

// ExplainEndpoints returns all endpoints of a service port, also those that are in none of its
// pools, and why each is in a pool or not. They may be newer than the last snapshot.
func (t *ServiceChangeTracker) ExplainEndpoints(name ServicePortName) ([]*endpoints.Endpoint, []endpoints.Explanation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	service := t.services[name.NamespacedName]
	if service == nil {
		return nil, nil
	}
	for _, p := range service.ports {
		if p.spec.name == name {
			all := t.cache.Endpoints(p.spec.name)
			return all, endpoints.Explain(all, t.policy(p))
		}
	}
	return nil, nil
}

// maxSlots is about how many pairs of a frontend and an endpoint one Service may have.
// Dataplanes have an object for each pair, so that a few API objects could otherwise
// fill the memory of every node.
const maxSlots = 500_000

// minFrontends is how many frontends of a port are served however many endpoints and ports there
// are: a Service with thousands of ports has its ClusterIP, its node port and two others.
const minFrontends = 4

// withinLimit returns the frontends of a port: always the ClusterIP and the node port,
// and as many of the others as maxSlots and minFrontends allow for this number of endpoints.
func (t *ServiceChangeTracker) withinLimit(p *portState, endpoints int) []Frontend {
	most := max(minFrontends, maxSlots/max(1, endpoints*len(p.service.ports)))
	if len(p.frontends) <= most {
		t.problems.set(limitKey(p.spec.name), nil)
		return p.frontends
	}
	out, rest := slices.Clone(p.frontends[:most]), p.frontends[most:]
	if last := rest[len(rest)-1]; last.Kind == NodePort {
		rest = p.frontends[most-1 : len(p.frontends)-1]
		out[most-1] = last
	}
	unserved := make([]netip.AddrPort, len(rest))
	for i := range rest {
		unserved[i] = rest[i].Addr
	}
	t.problems.note(limitKey(p.spec.name), &finding{unserved: unserved, problems: []*Problem{{
		Kind:           "Service",
		NamespacedName: p.spec.name.NamespacedName,
		Field:          "spec.ports",
		Reason:         TooMany,
		Err: fmt.Errorf("port %q has %d frontends and %d endpoints, and the Service has %d ports, which are too many together: %d of the frontends are not served",
			p.spec.name.Port, len(p.frontends), endpoints, len(p.service.ports), len(rest)),
	}}})
	return out
}

func (t *ServiceChangeTracker) routes(p *portState, sel *endpoints.Selection) portRoutes {
	svc := p.service.spec
	var r portRoutes

	internal := PoolCluster
	if svc.internalLocal {
		internal = PoolLocal
	}
	inside, outside := MasqueradeNever, MasqueradeNever
	switch {
	case t.options.MasqueradeAll:
		inside, outside = MasqueradeAlways, MasqueradeAlways
	case t.node.LocalTraffic.Detects(p.spec.name.Family):
		inside, outside = MasqueradeNonPods, MasqueradeAlways
	}
	r.internalFromInside = route(sel, internal, inside)
	r.internalFromOutside = route(sel, internal, outside)

	if svc.externalLocal && !sel.LocalIsCluster {
		// Traffic from inside does not leave the cluster to return through a load
		// balancer that honours the policy: it may use all endpoints.
		r.externalFromInside = route(sel, PoolCluster, MasqueradeNonPods)
		r.externalFromOutside = route(sel, PoolLocal, MasqueradeNever)
	} else {
		r.externalFromInside = route(sel, PoolCluster, MasqueradeAlways)
		r.externalFromOutside = r.externalFromInside
	}
	return r
}

func route(sel *endpoints.Selection, pool Pool, masquerade Masquerade) TrafficRoute {
	chosen := sel.Cluster
	if pool == PoolLocal {
		chosen = sel.Local
	}
	switch {
	case !sel.Any:
		return TrafficRoute{Action: Reject}
	case len(chosen) == 0:
		return TrafficRoute{Action: Drop}
	}
	return TrafficRoute{Action: Forward, Pool: pool, Masquerade: masquerade}
}

// frontends returns the frontends that the port owns.
func (t *ServiceChangeTracker) frontends(p *portState, r portRoutes) []Frontend {
	owned := 0
	for i := range p.claims {
		if p.claims[i].owns {
			owned++
		}
	}
	out := make([]Frontend, 0, owned)
	for i := range p.claims {
		if !p.claims[i].owns {
			continue // another service port owns it
		}
		c := p.spec.candidate(i)
		f := Frontend{
			Kind:           c.kind,
			Addr:           c.addr,
			Restricted:     c.restricted,
			AllowedSources: t.allowedSources(c),
			FromInside:     r.externalFromInside,
			FromOutside:    r.externalFromOutside,
		}
		if c.kind == ClusterIP {
			f.FromInside, f.FromOutside = r.internalFromInside, r.internalFromOutside
		}
		out = append(out, f)
	}
	return out
}

// allowedSources adds the frontend's own address where the node itself is
// allowed: a node on which that address is bound uses it as source.
func (t *ServiceChangeTracker) allowedSources(c candidate) []netip.Prefix {
	nodeAllowed := slices.ContainsFunc(t.node.Addresses, func(a netip.Addr) bool {
		return slices.ContainsFunc(c.sources, func(s netip.Prefix) bool { return s.Contains(a) })
	})
	if !nodeAllowed {
		return c.sources
	}
	own := netip.PrefixFrom(c.addr.Addr(), c.addr.Addr().BitLen())
	return tidyPrefixes(append(slices.Clone(c.sources), own))
}
