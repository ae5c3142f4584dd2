package proxy

import (
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/endpoints"
)

// ServicePort is all that a backend needs to program one Service port on one
// node: the API facts, and what follows from them for this node, resolved once
// for all backends. A published ServicePort, and all that it refers to, is
// never changed.
type ServicePort struct {
	Name ServicePortName
	// Frontends are the addresses that the port answers at, in the order
	// ClusterIP, external IPs, load-balancer IPs, node port.
	Frontends []Frontend
	// Cluster and Local are the pools that routes choose from, sorted by
	// address. A pool that no route uses is nil. They may share memory, and
	// pools of successive snapshots share the endpoints that did not change.
	Cluster, Local []*endpoints.Endpoint
	// Draining are, for UDP and SCTP, the endpoints outside of the pools that
	// are ready or still serve: those that terminate while others are ready,
	// and those that topology or a policy left out. They get no new flows and
	// keep those that they have. It is nil for TCP, and sorted by address.
	Draining []*endpoints.Endpoint
	// Affinity is the session affinity of the port. It is kept by client
	// address, for all frontends together, and apart for each pool.
	Affinity affinity.Config
	// InternalLocal and ExternalLocal say that the internal or the external
	// traffic policy is Local.
	InternalLocal, ExternalLocal bool
	// HasEndpoints says that some endpoint somewhere could serve, though
	// perhaps not for this node under a Local policy.
	HasEndpoints bool
	// HealthCheckNodePort is where load balancers ask for local endpoints;
	// zero for none.
	HealthCheckNodePort uint16
}

// Pool gives the endpoints of one of the two pools.
func (p *ServicePort) Pool(pool Pool) []*endpoints.Endpoint {
	if pool == PoolLocal {
		return p.Local
	}
	return p.Cluster
}

// Equal reports whether p and o say the same; a nil ServicePort equals only nil.
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
		sameFrontends(p.Frontends, o.Frontends) &&
		samePool(p.Cluster, o.Cluster) &&
		samePool(p.Local, o.Local) &&
		samePool(p.Draining, o.Draining)
}

// sameFrontends compares what two lists say. Successive ServicePorts share their list
// unless something about the frontends changed.
func sameFrontends(a, b []Frontend) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.EqualFunc(a, b, Frontend.Equal))
}

// samePool compares what two pools say. Pools of one tracker mostly share their
// endpoints, so that comparing pointers decides.
func samePool(a, b []*endpoints.Endpoint) bool {
	return slices.EqualFunc(a, b, func(x, y *endpoints.Endpoint) bool { return x == y || *x == *y })
}

// Frontend is one address and port at which a Service port answers.
type Frontend struct {
	Kind FrontendKind
	// Addr is the address and port. For [NodePort] the address is the
	// unspecified one of the family: the node's addresses are the matter of
	// [Node.NodePorts].
	Addr netip.AddrPort
	// Restricted says that only clients in AllowedSources may connect, and
	// that others are dropped, whatever the routes say. A restricted frontend
	// without AllowedSources is closed.
	Restricted bool
	// AllowedSources are sorted and do not overlap.
	AllowedSources []netip.Prefix
	// FromInside is for traffic of the cluster's own: it starts in a pod, as
	// far as [LocalTraffic] can tell pods, or on the node itself.
	FromInside TrafficRoute
	// FromOutside is for all other traffic.
	FromOutside TrafficRoute
}

// Equal reports whether f and o say the same.
func (f Frontend) Equal(o Frontend) bool {
	return f.Kind == o.Kind && f.Addr == o.Addr && f.Restricted == o.Restricted &&
		f.FromInside == o.FromInside && f.FromOutside == o.FromOutside &&
		slices.Equal(f.AllowedSources, o.AllowedSources)
}

// FrontendKind says by which part of the Service API a frontend came to be.
type FrontendKind uint8

// The kinds of frontends.
const (
	ClusterIP FrontendKind = iota
	ExternalIP
	LoadBalancer
	NodePort
)

// String gives the name of the constant.
func (k FrontendKind) String() string {
	return [...]string{"ClusterIP", "ExternalIP", "LoadBalancer", "NodePort"}[k&3]
}

// MarshalText gives what String gives, so that JSON has names and not numbers.
func (k FrontendKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// TrafficRoute says what must become of the traffic of one frontend that comes
// from one side. It is a comparable value.
type TrafficRoute struct {
	Action Action
	// Pool and Masquerade are meaningful when Action is Forward.
	Pool       Pool
	Masquerade Masquerade
}

// Action is what becomes of a packet.
type Action uint8

// What can become of a packet.
const (
	// Pass leaves the packet alone: it is no service traffic. [Route] says so;
	// no frontend may.
	Pass Action = iota
	// Forward sends it to one endpoint of a pool.
	Forward
	// Reject answers with ICMP port unreachable.
	Reject
	// Drop loses it in silence.
	Drop
)

// String gives the action in lower case.
func (a Action) String() string {
	return [...]string{"pass", "forward", "reject", "drop"}[a&3]
}

// MarshalText gives what String gives, so that JSON has names and not numbers.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Pool names one of the two pools of endpoints of a service port.
type Pool uint8

// The pools.
const (
	// PoolCluster are the endpoints that the Cluster policy and topology
	// hints select.
	PoolCluster Pool = iota
	// PoolLocal are those that the Local policy selects.
	PoolLocal
)

// String gives "cluster" or "local".
func (p Pool) String() string {
	return [...]string{"cluster", "local"}[p&1]
}

// MarshalText gives what String gives, so that JSON has names and not numbers.
func (p Pool) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Masquerade says whose source address is replaced by one of the node's, so
// that replies come back through the node. Whatever it says, a connection that
// goes back to the address it came from (hairpin) is masqueraded.
type Masquerade uint8

// When traffic is masqueraded.
const (
	// MasqueradeNever keeps the client's address.
	MasqueradeNever Masquerade = iota
	// MasqueradeNonPods keeps the address of pods, as [LocalTraffic] tells
	// them, and replaces all others.
	MasqueradeNonPods
	// MasqueradeAlways replaces the client's address.
	MasqueradeAlways
)

// String gives "never", "non-pods" or "always".
func (m Masquerade) String() string {
	return [...]string{"never", "non-pods", "always", "?"}[m&3]
}

// MarshalText gives what String gives, so that JSON has names and not numbers.
func (m Masquerade) MarshalText() ([]byte, error) { return []byte(m.String()), nil }
