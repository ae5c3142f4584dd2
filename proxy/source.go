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

// Source delivers snapshots. A [ServiceChangeTracker] is one.
type Source interface {
	// Next waits for a snapshot with a generation other than after's, and
	// returns the newest; if there is one, also with a context that has ended.
	// When the context ends, Next returns its error. Any number of consumers may call
	// Next; each gets the newest snapshot, whatever the others have asked for.
	Next(ctx context.Context, after Snapshot) (Snapshot, error)
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
