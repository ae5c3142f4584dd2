package kubewatch

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/vipkit/vipkit/proxy"
)

// labelProxyName is the label of Services for another service proxy.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// Handler receives the objects of a Watcher; every proxy.ServiceChangeTracker is one. Its
// methods are called from several goroutines at once.
type Handler interface {
	proxy.ServiceHandler
	// UpdateNode receives the Node, or nil after it is deleted.
	UpdateNode(*v1.Node)
	// Synced is called once, after all objects that existed at the start.
	Synced()
	// UpdateServiceCIDRs receives all ranges that ClusterIPs are allocated from, sorted,
	// each once. It is called before Synced if the API server has any.
	UpdateServiceCIDRs([]netip.Prefix)
}

// Watcher lists and watches the objects of an API server. Client and Handler are required. The fields must not be
// changed while it runs.
type Watcher struct {
	// Client is a client of the API server; [NewClient] makes one.
	Client kubernetes.Interface
	// Handler receives the objects and their changes.
	Handler Handler
	// NodeName is the Node to watch; empty for none. Synced does not wait for a Node
	// that does not exist.
	NodeName string
	// ProxyName selects the Services whose label
	// service.kubernetes.io/service-proxy-name has this value; empty selects those
	// without the label. A tracker accepts Services with the label only if
	// TrackerOptions.Accept does.
	ProxyName string
	// Report, if not nil, receives the error of each request that the API server refused, and
	// one error when it cannot be reached, until a request succeeds again. It may be called
	// from several goroutines at once.
	Report func(error)
	// Logger receives how long the API server was not reached, and the log of client-go's reflectors;
	// the zero value discards it.
	Logger logr.Logger

	events Events // what it watches goes through them
}

// NewClient returns a client that uses protobuf wherever the API server does. It copies
// the configuration and changes nothing else. It does not connect; an error says that
// the configuration is invalid.
func NewClient(config *rest.Config) (kubernetes.Interface, error) {
	c := rest.CopyConfig(config)
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(c)
}

// Run watches until ctx ends, and then soon returns nil. It returns an error only if
// Client or Handler is missing; it retries an API server that is unreachable. Only one
// Run may be active.
func (s *Watcher) Run(ctx context.Context) error {
	if s.Client == nil || s.Handler == nil {
		return errors.New("kubewatch: Client and Handler are required")
	}
	ctx = logr.NewContext(ctx, s.Logger)
	e := &s.events
	e.Handler, e.NodeName, e.ProxyName, e.Report = s.Handler, s.NodeName, s.ProxyName, s.report
	e.foreign.restart()
	if e.ranges != nil { // of a former Run, whose Handler may have been another
		e.ranges.handle = s.Handler.UpdateServiceCIDRs
		e.ranges.handle(slices.Clone(e.ranges.handled))
	}
	feeds := s.feeds(e)
	var left atomic.Int64
	left.Store(int64(len(feeds)))
	for _, f := range feeds {
		f.synced = sync.OnceFunc(func() {
			if left.Add(-1) == 0 {
				s.Handler.Synced()
			}
		})
	}
	var wg sync.WaitGroup
	for _, f := range feeds {
		wg.Go(func() { f.run(ctx) })
	}
	wg.Wait()
	return nil
}

// Foreign reports whether an address may be a ClusterIP of a Service for another proxy, for the Options of package
// conntrack. Until the first list of Services of a Run is complete, every address may be one. It may be called from any goroutine.
func (s *Watcher) Foreign(a netip.Addr) bool { return s.events.Foreign(a) }

func (s *Watcher) feeds(e *Events) []*feed {
	core, to := s.Client.CoreV1(), &reach{log: s.Logger}
	services, slices, nodes := core.Services(""), s.Client.DiscoveryV1().EndpointSlices(""), core.Nodes()
	feeds := []*feed{
		newFeed(feedOptions[*v1.Service, *v1.ServiceList]{
			list: services.List, watch: services.Watch, client: s.Client, events: e.Services, inventories: []*inventory{&e.services, &e.foreign},
			fields: "spec.clusterIP!=" + v1.ClusterIPNone,
		}, to, s.report),
		newFeed(feedOptions[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList]{
			list: slices.List, watch: slices.Watch, client: s.Client, events: e.EndpointSlices, inventories: []*inventory{&e.slices},
			labels: "!" + v1.IsHeadlessService,
		}, to, s.report),
	}
	if s.NodeName != "" {
		feeds = append(feeds, newFeed(feedOptions[*v1.Node, *v1.NodeList]{
			list: nodes.List, watch: nodes.Watch, client: s.Client, events: e.Nodes, inventories: []*inventory{&e.nodes},
			fields: fields.OneTermEqualSelector(metav1.ObjectNameField, s.NodeName).String(),
		}, to, s.report))
	}
	cidrs := s.Client.NetworkingV1().ServiceCIDRs()
	return append(feeds, newFeed(feedOptions[*networkingv1.ServiceCIDR, *networkingv1.ServiceCIDRList]{
		list: cidrs.List, watch: cidrs.Watch, client: s.Client, events: e.ServiceCIDRs, inventories: []*inventory{&e.cidrs},
		// API servers before 1.33 lack them; everything else works without.
		isOptional: true,
	}, to, s.report))
}

func (s *Watcher) report(err error) {
	if s.Report != nil {
		s.Report(err)
	}
}
