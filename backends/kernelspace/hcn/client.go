package hcn

import "context"

// Client is the service of one machine. The package comment says how to implement it.
type Client interface {
	Host
	Reader
	EndpointWriter
	LoadBalancerWriter
}

// Host is what the service tells of itself and of networks.
type Host interface {
	// Version returns the version of the service (vmcompute.dll, GET /globals/version).
	Version(ctx context.Context) (Version, error)
	// Network returns the network with a name. If there is none, the error wraps
	// [ErrNotFound]; that is not the error of a query that failed. There is no query by ID: a
	// network that was made again has the same name and another ID.
	Network(ctx context.Context, name string) (Network, error)
	// Wait returns the next notification (HcnRegisterServiceCallback). It also returns one that
	// came before the call and after an earlier one, so that none is lost between two calls;
	// several may be returned as one, of which the greatest [Event] counts. It returns the
	// context's error when ctx ends, an error that wraps [ErrUnsupported] if the service cannot
	// notify, and one that wraps [ErrUnavailable] while it does not run; who waits tries again after a
	// pause. It is called by one goroutine, beside all other methods.
	Wait(ctx context.Context) (Event, error)
}

// Reader lists and reads objects. An object that vanishes between the list and the query is no
// failure of the list: the query returns an error that wraps [ErrNotFound].
type Reader interface {
	// EndpointIDs returns the IDs of all endpoints of a network (HcnEnumerateEndpoints with
	// the filter VirtualNetwork); and of all networks, without a filter, if networkID is empty.
	EndpointIDs(ctx context.Context, networkID string) ([]string, error)
	// Endpoint returns an endpoint.
	Endpoint(ctx context.Context, id string) (Endpoint, error)
	// LoadBalancerIDs returns the IDs of all load balancers of the machine.
	LoadBalancerIDs(ctx context.Context) ([]string, error)
	// LoadBalancer returns a load balancer.
	LoadBalancer(ctx context.Context, id string) (LoadBalancer, error)
}

// EndpointWriter makes and deletes endpoints. A method that returns an error may have done its work
// nevertheless, unless the error says otherwise: [ErrExists], [ErrNotFound], [ErrUnsupported],
// [CodeInvalidParameter] and [CodeHasReferences] mean that nothing was done.
type EndpointWriter interface {
	// CreateEndpoint makes an endpoint in the network NetworkID, and returns its ID. The ID of
	// e is empty.
	CreateEndpoint(ctx context.Context, e Endpoint) (id string, err error)
	// DeleteEndpoint deletes an endpoint by its ID, without reading it. If there is none, the
	// error wraps [ErrNotFound].
	DeleteEndpoint(ctx context.Context, id string) error
}

// LoadBalancerWriter makes, changes and deletes load balancers. Its errors mean what errors of
// [EndpointWriter] mean: an object that a call should have made may exist after an error.
type LoadBalancerWriter interface {
	// CreateLoadBalancer makes a load balancer, and returns its ID. The ID of b is empty.
	CreateLoadBalancer(ctx context.Context, b LoadBalancer) (id string, err error)
	// ModifyLoadBalancer replaces the content of the load balancer with the ID of b. If the
	// service cannot do that, the error wraps [ErrUnsupported].
	ModifyLoadBalancer(ctx context.Context, b LoadBalancer) error
	// DeleteLoadBalancer deletes a load balancer by its ID, without reading it. If there is none,
	// the error wraps [ErrNotFound].
	DeleteLoadBalancer(ctx context.Context, id string) error
}

// Event is a kind of notification. A greater one says more: who gets it reads again all that
// smaller ones are about.
type Event uint8

// The events.
const (
	// EndpointsChanged: an endpoint was attached to a container or detached.
	EndpointsChanged Event = iota + 1
	// NetworksChanged: a network was created or deleted.
	NetworksChanged
	// Disconnected: the service ended. What it had may be lost.
	Disconnected
)

// String returns what happened in words.
func (e Event) String() string {
	names := [...]string{"none", "endpoints changed", "networks changed", "disconnected"}
	if int(e) >= len(names) {
		return "?"
	}
	return names[e]
}
