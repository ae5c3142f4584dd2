package proxy

import (
	"context"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
)

// ServiceHandler receives changes of Services and EndpointSlices.
type ServiceHandler interface {
	// UpdateService adds a Service, or replaces it. The handler neither keeps
	// nor changes the object.
	UpdateService(*v1.Service)
	// DeleteService removes a Service. An unknown name is no error.
	DeleteService(types.NamespacedName)
	// UpdateEndpointSlice adds an EndpointSlice, or replaces it. The handler
	// neither keeps nor changes the object.
	UpdateEndpointSlice(*discoveryv1.EndpointSlice)
	// DeleteEndpointSlice removes an EndpointSlice. An unknown name is no error.
	DeleteEndpointSlice(types.NamespacedName)
}

// Source delivers snapshots. Those of a tracker have the times of changes ([Snapshot.Heard]).
// A tracker has four further methods. The Runner calls Lack, which returns what the tracker lacks,
// such as the call of Synced, and details. Packages prommetrics, health and inspect call the others:
// ChangeCounts returns how many changes of Services and of EndpointSlices it has received, and
// how many of these since Next was last asked for a snapshot; NodeEligible, whether load balancers may
// send new connections to the node; ExplainEndpoints, all endpoints of a service port with the
// reasons why pools have them or not.
type Source interface {
	// Next waits for a snapshot with a generation other than after's, and
	// returns the newest; if there is one, also with a context that has ended.
	// When the context ends, Next returns its error.
	Next(ctx context.Context, after Snapshot) (Snapshot, error)
}

// ServiceChangeTracker makes snapshots of API objects. All methods may be called
// from any goroutine.
type ServiceChangeTracker interface {
	Source
	ServiceHandler
	// UpdateNode replaces the object of the Node that the proxy runs on; objects of other
	// nodes are ignored. Nil means that the object was deleted: the tracker keeps its last
	// content, and reports that in [Snapshot.Problems].
	UpdateNode(*v1.Node)
	// UpdateServiceCIDRs replaces all ranges that ClusterIPs are allocated from,
	// also those of the options.
	UpdateServiceCIDRs([]netip.Prefix)
	// HasEndpoint reports whether an EndpointSlice that the tracker has received names an
	// endpoint of a service port, in whatever condition: also one that is in no pool. It is
	// the InAPI of package conntrack.
	HasEndpoint(ServicePortName, netip.AddrPort) bool
	// Synced must be called after all existing objects have been handed over.
	// Before that, Next returns no snapshot: it would remove working objects of
	// the dataplane whose Services the tracker has not received yet.
	Synced()
}

// TrackerOptions are the node and the rules for which a tracker resolves services.
// The zero value is usable.
type TrackerOptions struct {
	// NodeName is the node that the proxy runs on. Without it no endpoint is
	// local and every Node object is ignored.
	NodeName string
	// NodeAddresses are the node's addresses as long as no Node object has any.
	NodeAddresses []netip.Addr
	// NodePortAddresses are the addresses that node ports answer at; the zero
	// value selects the node's primary addresses.
	NodePortAddresses NodePortAddresses
	// LocalTraffic distinguishes traffic from pods; the zero value cannot.
	LocalTraffic LocalTraffic
	// ServiceCIDRs are the ranges that ClusterIPs are allocated from, if known,
	// until UpdateServiceCIDRs replaces them.
	ServiceCIDRs []netip.Prefix
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool
	// IgnoreExternalIPs makes the tracker ignore spec.externalIPs.
	IgnoreExternalIPs bool
	// LocalFallback is what a Local policy does without a ready local endpoint.
	LocalFallback endpoints.LocalFallback
	// Annotations are the keys of annotations of Services that
	// [ServicePort.Annotations] carries, for backends that understand them. Other
	// annotations never cause a change. Values of more than 4,096 bytes are ignored and
	// reported in [Snapshot.Problems].
	Annotations []string
	// Accept selects the Services to proxy. Nil selects those without the label
	// service.kubernetes.io/service-proxy-name.
	Accept func(*v1.Service) bool
}
