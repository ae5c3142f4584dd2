package kubewatch

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/vipkit/vipkit/proxy"
)

// labelProxyName is what names another service proxy in a Service.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// Handler takes what a Source watches; every proxy.ServiceChangeTracker is one. Its
// methods are called from several goroutines at once.
type Handler interface {
	proxy.ServiceHandler
	proxy.EndpointSliceHandler
	proxy.NodeHandler
	// Synced is called once, when all objects that existed at the start have been
	// handed over.
	Synced()
}

// ServiceCIDRHandler is an optional ability of a [Handler]. The trackers of package
// proxy have it.
type ServiceCIDRHandler interface {
	// UpdateServiceCIDRs takes all ranges that ClusterIPs come from, sorted, each
	// once. Those that an API server has are handed over before Synced.
	UpdateServiceCIDRs([]netip.Prefix)
}

// Source watches an API server. Client and Handler are required. The fields must not be
// changed while it runs.
type Source struct {
	// Client is how the API server is asked; [NewClient] makes one.
	Client kubernetes.Interface
	// Handler is told what there is, and what changes.
	Handler Handler
	// NodeName is the Node to watch; empty for none. Where it does not exist, it
	// is not waited for.
	NodeName string
	// ProxyName watches the Services whose label
	// service.kubernetes.io/service-proxy-name has this value; empty those
	// without the label. A tracker must be told to take such Services, with
	// TrackerOptions.Accept.
	ProxyName string
	// Report, if not nil, is told each request that failed. It may be called from
	// several goroutines at once.
	Report func(error)
	// Logger gets what the client has to say; the zero value discards it.
	Logger logr.Logger

	backoff *wait.Backoff // nil for patience
	foreign foreign
}

// NewClient gives a client that speaks protobuf wherever the API server does. It
// changes nothing else of the configuration, and not the configuration itself. It does not
// connect yet; an error says that the configuration makes no sense.
func NewClient(config *rest.Config) (kubernetes.Interface, error) {
	c := rest.CopyConfig(config)
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(c)
}

// Run watches until ctx ends, and then soon returns nil. It returns an error only where
// Client or Handler is missing: an API server that cannot be reached is tried again. It
// must be called once at a time.
func (s *Source) Run(ctx context.Context) error {
	if s.Client == nil || s.Handler == nil {
		return errors.New("kubewatch: Client and Handler are required")
	}
	ctx = logr.NewContext(ctx, s.Logger)
	s.foreign.set(func() (map[netip.Addr]struct{}, error) { return s.listForeign(ctx) })
	feeds := s.feeds()
	barrier := &barrier{then: s.Handler.Synced, left: len(feeds)}
	for _, f := range feeds {
		f.synced = sync.OnceFunc(barrier.done)
		if s.backoff != nil {
			f.backoff = *s.backoff
		}
	}
	var wg sync.WaitGroup
	for _, f := range feeds {
		wg.Go(func() { f.run(ctx) })
	}
	wg.Wait()
	return nil
}

func (s *Source) feeds() []*feed {
	core, h := s.Client.CoreV1(), s.Handler
	services, slices, nodes := core.Services(""), s.Client.DiscoveryV1().EndpointSlices(""), core.Nodes()
	feeds := []*feed{
		newFeed(feedOptions[*v1.Service, *v1.ServiceList]{
			list: services.List, watch: services.Watch, client: s.Client, update: h.UpdateService, remove: h.DeleteService,
			labels: serviceLabels(s.ProxyName), fields: "spec.clusterIP!=" + v1.ClusterIPNone,
		}, s.report),
		newFeed(feedOptions[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList]{
			list: slices.List, watch: slices.Watch, client: s.Client, update: h.UpdateEndpointSlice, remove: h.DeleteEndpointSlice,
			labels: "!" + v1.IsHeadlessService,
		}, s.report),
	}
	if s.NodeName != "" {
		feeds = append(feeds, newFeed(feedOptions[*v1.Node, *v1.NodeList]{
			list: nodes.List, watch: nodes.Watch, client: s.Client, update: h.UpdateNode,
			remove: func(types.NamespacedName) { h.UpdateNode(nil) },
			fields: fields.OneTermEqualSelector(metav1.ObjectNameField, s.NodeName).String(),
		}, s.report))
	}
	if handler, ok := h.(ServiceCIDRHandler); ok {
		cidrs := s.Client.NetworkingV1().ServiceCIDRs()
		ranges := newRanges(func(all []netip.Prefix) {
			s.foreign.forget()
			handler.UpdateServiceCIDRs(all)
		})
		feeds = append(feeds, newFeed(feedOptions[*networkingv1.ServiceCIDR, *networkingv1.ServiceCIDRList]{
			list: cidrs.List, watch: cidrs.Watch, client: s.Client, update: ranges.update, remove: ranges.remove,
			// API servers before 1.33 do not have them, and all else works without.
			isOptional: true,
		}, s.report))
	}
	return feeds
}

func serviceLabels(proxyName string) string {
	if proxyName == "" {
		return "!" + labelProxyName
	}
	return labelProxyName + "=" + proxyName
}

func (s *Source) report(err error) {
	if s.Report != nil {
		s.Report(err)
	}
}

// barrier calls a function when all have come.
type barrier struct {
	then func()
	mu   sync.Mutex
	left int
}

func (b *barrier) done() {
	b.mu.Lock()
	b.left--
	isLast := b.left == 0
	b.mu.Unlock()
	if isLast {
		b.then()
	}
}
