package proxy

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/enum"
)

// ServicePortName identifies one port of one Service in one IP family, by the fields Namespace,
// Name, Port, Protocol and Family. Package endpoints has the type, its methods, and the comments
// of the fields.
type ServicePortName = endpoints.ServicePortName

// ServicePort is everything that a backend needs to program one service port on one
// node, resolved once for all backends. A published ServicePort, and everything it
// refers to, is immutable.
type ServicePort struct {
	// Name identifies the port.
	Name ServicePortName
	// Frontends are the addresses that the port answers at, in the order
	// ClusterIP, external IPs, load-balancer IPs, node port.
	Frontends []Frontend
	// Cluster and Local are the pools that routes choose from, sorted by
	// address. A pool that no route uses is nil; but Local is there as well if load
	// balancers check for local endpoints. They may share memory, and pools of
	// successive snapshots share the endpoints that did not change.
	Cluster, Local []*endpoints.Endpoint
	// Draining are, for UDP and SCTP, the endpoints outside of the pools that
	// are ready or still serve: those that terminate while others are ready,
	// and those that topology or a policy did not select. They get no new flows, and
	// keep their existing ones as far as DrainingOf allows. Draining is nil for TCP, and
	// sorted by address.
	Draining []*endpoints.Endpoint
	// Affinity is the session affinity of the port. It is kept by client
	// address, for all frontends together, and separately for each pool.
	Affinity affinity.Config
	// InternalLocal and ExternalLocal say that the internal or the external
	// traffic policy is Local.
	InternalLocal, ExternalLocal bool
	// HasEndpoints says that some endpoint of the cluster could serve, although
	// a Local policy may exclude it on this node.
	HasEndpoints bool
	// HealthCheckNodePort is the port at which load balancers check for local
	// endpoints; zero for none.
	HealthCheckNodePort uint16
	// Annotations are the Service's annotations that [TrackerOptions] names; nil if it has
	// none of them. All ports of a Service share the map.
	Annotations map[string]string
}

// Pool returns the endpoints of one of the two pools.
func (p *ServicePort) Pool(pool Pool) []*endpoints.Endpoint {
	if pool == PoolLocal {
		return p.Local
	}
	return p.Cluster
}

// DrainingOf yields the endpoints outside of a route's pool to which UDP and SCTP flows that the route decides
// about may go on: all draining ones, and those that are in pool Local alone, since they terminate or topology
// does not prefer them. With the Local policy, it yields only draining endpoints on this node. Topology is a
// preference for new flows: a connection of QUIC does not break because hints change.
func (p *ServicePort) DrainingOf(r TrafficRoute) iter.Seq[*endpoints.Endpoint] {
	local := r.Action == Drop || r.Action == Forward && r.Pool == PoolLocal
	return func(yield func(*endpoints.Endpoint) bool) {
		for _, e := range p.Draining {
			if (e.Local || !local) && !yield(e) {
				return
			}
		}
		if !local {
			p.onlyLocal(yield)
		}
	}
}

// onlyLocal yields the endpoints of pool Local that pool Cluster does not have, if the protocol has flows that
// outlive a change of endpoints.
func (p *ServicePort) onlyLocal(yield func(*endpoints.Endpoint) bool) {
	if p.Name.Protocol == v1.ProtocolTCP {
		return
	}
	for _, e := range p.Local {
		if _, both := slices.BinarySearchFunc(p.Cluster, e, (*endpoints.Endpoint).Compare); !both && !yield(e) {
			return
		}
	}
}

// Equal reports whether p and o have equal content; a nil ServicePort equals only nil.
func (p *ServicePort) Equal(o *ServicePort) bool {
	if p == o {
		return true
	}
	if p == nil || o == nil {
		return false
	}
	return p.Name == o.Name &&
		p.Affinity == o.Affinity &&
		p.InternalLocal == o.InternalLocal &&
		p.ExternalLocal == o.ExternalLocal &&
		p.HasEndpoints == o.HasEndpoints &&
		p.HealthCheckNodePort == o.HealthCheckNodePort &&
		maps.Equal(p.Annotations, o.Annotations) &&
		sameFrontends(p.Frontends, o.Frontends) &&
		samePool(p.Cluster, o.Cluster) &&
		samePool(p.Local, o.Local) &&
		samePool(p.Draining, o.Draining)
}

// sameFrontends compares the content of two lists. Successive ServicePorts share their list
// unless something about the frontends changed.
func sameFrontends(a, b []Frontend) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.EqualFunc(a, b, Frontend.Equal))
}

// samePool compares the content of two pools. Pools of one tracker mostly share their
// endpoints, so that comparing pointers decides.
func samePool(a, b []*endpoints.Endpoint) bool {
	return slices.EqualFunc(a, b, func(x, y *endpoints.Endpoint) bool { return x == y || *x == *y })
}

// Frontend is one address and port at which a service port answers.
type Frontend struct {
	// Kind says which part of the Service has the address.
	Kind FrontendKind
	// Addr is the address and port. For [NodePort] the address is the
	// unspecified one of the family: [Node.NodePorts] selects the node's
	// addresses.
	Addr netip.AddrPort
	// Restricted says that only clients in AllowedSources may connect, and
	// that packets of others are dropped, whatever the routes are. A restricted
	// frontend without AllowedSources drops all packets.
	Restricted bool
	// AllowedSources are sorted and do not overlap.
	AllowedSources []netip.Prefix
	// FromInside is for traffic from inside: it starts in a pod, as far as
	// [LocalTraffic] identifies pods, or on the node itself.
	FromInside TrafficRoute
	// FromOutside is for all other traffic.
	FromOutside TrafficRoute
}

// Allows reports whether a client may connect.
func (f *Frontend) Allows(source netip.Addr) bool {
	return !f.Restricted || slices.ContainsFunc(f.AllowedSources, func(p netip.Prefix) bool { return p.Contains(source) })
}

// Routes returns the routes of the connections that the frontend allows, by where
// they start: in a pod, as far as [LocalTraffic] identifies pods, on the node itself,
// or anywhere else. A client that is both a pod and on the node counts as a pod. The Masquerade
// of the routes is MasqueradeNever or MasqueradeAlways, and routes of equal effect are equal.
func (f *Frontend) Routes() (pod, node, outside TrafficRoute) {
	return f.FromInside.of(true), f.FromInside.of(false), f.FromOutside.of(false)
}

// of returns the route of clients that are pods, or of all others.
func (r TrafficRoute) of(pod bool) TrafficRoute {
	switch {
	case r.Action != Forward:
		return TrafficRoute{Action: r.Action}
	case r.Masquerade != MasqueradeNonPods:
	case pod:
		r.Masquerade = MasqueradeNever
	default:
		r.Masquerade = MasqueradeAlways
	}
	return r
}

// Equal reports whether f and o have equal content.
func (f Frontend) Equal(o Frontend) bool {
	return f.Kind == o.Kind && f.Addr == o.Addr && f.Restricted == o.Restricted &&
		f.FromInside == o.FromInside && f.FromOutside == o.FromOutside &&
		slices.Equal(f.AllowedSources, o.AllowedSources)
}

// FrontendKind is the part of the Service API that a frontend is from.
type FrontendKind uint8

// The kinds of frontends.
const (
	// ClusterIP is an address of spec.clusterIPs.
	ClusterIP FrontendKind = iota
	// ExternalIP is an address of spec.externalIPs.
	ExternalIP
	// LoadBalancer is an address of status.loadBalancer.ingress.
	LoadBalancer
	// NodePort is the node port, at the addresses of the node.
	NodePort
)

// String returns the name of the constant.
func (k FrontendKind) String() string {
	return enum.Name(k, "ClusterIP", "ExternalIP", "LoadBalancer", "NodePort")
}

// MarshalText returns what String returns, so that JSON has names and not numbers. A value that
// has no name is an error.
func (k FrontendKind) MarshalText() ([]byte, error) { return enum.Marshal(k, NodePort) }

// UnmarshalText reads what MarshalText returns.
func (k *FrontendKind) UnmarshalText(text []byte) error { return enum.Unmarshal(k, NodePort, text) }

// TrafficRoute is what must happen to the traffic of one frontend from one side, inside
// or outside. It is a comparable value.
type TrafficRoute struct {
	// Action is what happens to the traffic.
	Action Action
	// Pool says which endpoints get the traffic if Action is Forward.
	Pool Pool
	// Masquerade says whose source address is replaced if Action is Forward.
	Masquerade Masquerade
}

// Masquerades reports whether an endpoint sees an address of the node instead of the
// client's. r is one of [Frontend.Routes]; fromNode says that the client is a process on
// the node.
//
//   - MasqueradeNever: only a hairpin is masqueraded, where client and endpoint have one
//     address.
//   - MasqueradeAlways: everything is masqueraded, except connections from elsewhere
//     (fromNode is false) to an address of the node, which do not leave the node.
func (r TrafficRoute) Masquerades(node *Node, client, endpoint netip.Addr, fromNode bool) bool {
	if r.Masquerade == MasqueradeNever {
		return endpoint == client
	}
	return fromNode || !slices.Contains(node.Addresses, endpoint)
}

// Action is what happens to a packet.
type Action uint8

// The actions.
const (
	// Pass leaves the packet unchanged: it is no service traffic. [Route] returns
	// it; the route of a frontend must not have it.
	Pass Action = iota
	// Forward sends the packet to one endpoint of a pool.
	Forward
	// Reject answers with ICMP port unreachable.
	Reject
	// Drop drops the packet without an answer.
	Drop
)

// String returns the action in lower case.
func (a Action) String() string { return enum.Name(a, "pass", "forward", "reject", "drop") }

// MarshalText returns what String returns, so that JSON has names and not numbers. A value that
// has no name is an error.
func (a Action) MarshalText() ([]byte, error) { return enum.Marshal(a, Drop) }

// UnmarshalText reads what MarshalText returns.
func (a *Action) UnmarshalText(text []byte) error { return enum.Unmarshal(a, Drop, text) }

// Pool names one of the two pools of endpoints of a service port.
type Pool uint8

// The pools.
const (
	// PoolCluster are the endpoints that the Cluster policy and topology
	// hints select.
	PoolCluster Pool = iota
	// PoolLocal are the endpoints that the Local policy selects.
	PoolLocal
)

// String returns "cluster" or "local".
func (p Pool) String() string { return enum.Name(p, "cluster", "local") }

// MarshalText returns what String returns, so that JSON has names and not numbers. A value that
// has no name is an error.
func (p Pool) MarshalText() ([]byte, error) { return enum.Marshal(p, PoolLocal) }

// UnmarshalText reads what MarshalText returns.
func (p *Pool) UnmarshalText(text []byte) error { return enum.Unmarshal(p, PoolLocal, text) }

// Masquerade says for which clients the source address is replaced by one of the
// node's, so that replies return through the node. [TrafficRoute.Masquerades] decides
// for one client and one endpoint; MasqueradeNever, too, masquerades a connection
// whose client and endpoint have one address (hairpin).
type Masquerade uint8

// When traffic is masqueraded.
const (
	// MasqueradeNever keeps the client's address, except in a hairpin.
	MasqueradeNever Masquerade = iota
	// MasqueradeNonPods keeps the addresses of pods, as far as [LocalTraffic]
	// identifies them, and replaces all others.
	MasqueradeNonPods
	// MasqueradeAlways replaces the client's address, except where
	// [TrafficRoute.Masquerades] keeps it.
	MasqueradeAlways
)

// String returns "never", "non-pods" or "always".
func (m Masquerade) String() string { return enum.Name(m, "never", "non-pods", "always") }

// MarshalText returns what String returns, so that JSON has names and not numbers. A value that
// has no name is an error.
func (m Masquerade) MarshalText() ([]byte, error) { return enum.Marshal(m, MasqueradeAlways) }

// UnmarshalText reads what MarshalText returns.
func (m *Masquerade) UnmarshalText(text []byte) error {
	return enum.Unmarshal(m, MasqueradeAlways, text)
}
