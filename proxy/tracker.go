package proxy

import (
	"context"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
)

// ServiceHandler takes changes of Services.
type ServiceHandler interface {
	// UpdateService takes a Service that is new or may have changed. The
	// handler neither keeps nor changes it.
	UpdateService(*v1.Service)
	// DeleteService takes that a Service is gone. One that was never there is
	// no error.
	DeleteService(types.NamespacedName)
}

// EndpointSliceHandler takes changes of EndpointSlices.
type EndpointSliceHandler interface {
	// UpdateEndpointSlice takes a slice that is new or may have changed. The
	// handler neither keeps nor changes it.
	UpdateEndpointSlice(*discoveryv1.EndpointSlice)
	// DeleteEndpointSlice takes that a slice is gone. One that was never there
	// is no error.
	DeleteEndpointSlice(types.NamespacedName)
}

// NodeHandler takes changes of the Node that the proxy runs on.
type NodeHandler interface {
	// UpdateNode takes the node's object, or nil when there is none any more;
	// objects of other nodes are ignored. A tracker then keeps what the object
	// said last, and names it in [Snapshot.Problems].
	UpdateNode(*v1.Node)
}

// Source delivers snapshots.
type Source interface {
	// Next waits until there is a snapshot with a generation other than
	// after's, and gives the newest, also where the context has ended. It ends
	// with the context's error.
	Next(ctx context.Context, after Snapshot) (Snapshot, error)
}

// ServiceChangeTracker folds API objects into snapshots. All methods may be
// called from any goroutine.
type ServiceChangeTracker interface {
	Source
	ServiceHandler
	EndpointSliceHandler
	NodeHandler
	// UpdateServiceCIDRs takes all ranges that ClusterIPs come from, in the place
	// of those that were known before.
	UpdateServiceCIDRs([]netip.Prefix)
	// Synced says that all objects that existed at the start have been handed
	// over. Until then no snapshot comes out, so that nothing that works on
	// the node is taken down because the tracker has not heard of it yet.
	Synced()
}

// TrackerOptions says for which node and under which rules a tracker resolves
// services. The zero value is usable.
type TrackerOptions struct {
	// NodeName is the node that the proxy runs on. Without it no endpoint is
	// local and no Node object is taken.
	NodeName string
	// NodeAddresses are the node's addresses as long as no Node object tells them.
	NodeAddresses []netip.Addr
	// NodePortAddresses are the addresses that node ports answer at; the zero
	// value takes the node's primary addresses.
	NodePortAddresses NodePortAddresses
	// LocalTraffic tells pods from others; the zero value cannot.
	LocalTraffic LocalTraffic
	// ServiceCIDRs are the ranges that ClusterIPs come from, if known, as
	// long as nobody tells others (see UpdateServiceCIDRs).
	ServiceCIDRs []netip.Prefix
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool
	// IgnoreExternalIPs makes the tracker overlook spec.externalIPs.
	IgnoreExternalIPs bool
	// LocalFallback is what a Local policy does without a ready local endpoint.
	LocalFallback endpoints.LocalFallback
	// Accept says which Services count. Nil takes those without the label
	// service.kubernetes.io/service-proxy-name.
	Accept func(*v1.Service) bool
}
