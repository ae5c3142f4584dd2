package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// Options says what a [Server] serves. The zero value serves the health check
// node ports alone.
type Options struct {
	// Address is where Run serves /healthz and /livez, as host:port;
	// kube-proxy has them at 0.0.0.0:10256. Empty means nowhere.
	Address string
	// Pages are what else Run serves, by host:port, such as metrics: within the
	// same limits of time and number, and as patiently where the address is
	// taken. A handler that takes its time moves the deadlines, by way of
	// [http.ResponseController].
	Pages map[string]http.Handler
	// NodeName is the node whose object says whether it is eligible; [Server.Tracker]
	// brings the object. Without a name it always is.
	NodeName string
	// Timeout is how old the last verified state of the dataplane may be, and
	// how long a change may wait to be programmed, before the proxy counts as
	// unhealthy. Zero means twice the ResyncInterval of the Runner.
	Timeout time.Duration
	// Report, if not nil, is told once when a port cannot be served, and once,
	// with a nil error, when that is over. The zero name stands for Address, one
	// without a namespace for an address of Pages. Run calls it.
	Report func(service types.NamespacedName, err error)
	// Answered, if not nil, is called for each answer of /healthz and /livez,
	// from any goroutine.
	Answered func(path string, status int)
}

// Server knows how a [proxy.Runner] fares and tells those who ask. Make one
// with [New], let it [Server.Watch] the Runner, and [Server.Run] it. All methods
// may be called from any goroutine.
type Server struct {
	options Options
	// wake has room for one token: there is something for Run to do.
	wake chan struct{}

	mu       sync.RWMutex
	fresh    freshness
	eligible bool
	counts   counts
	// served is what the dataplane holds, as far as it is known.
	served proxy.Snapshot
	// moved says that the node's addresses may be others than Run knows.
	moved bool
}

// New gives a Server that has heard of nothing yet.
func New(o Options) *Server {
	return &Server{
		options:  o,
		wake:     make(chan struct{}, 1),
		eligible: o.NodeName == "",
		counts:   counts{services: map[types.NamespacedName]*service{}, moved: map[types.NamespacedName]struct{}{}},
	}
}

// Watch makes the Server follow what r does; what r called before, it goes on
// calling. It must be called once, before r runs. It is an error if r resyncs
// never, or not within the timeout: the proxy would count as unhealthy.
func (s *Server) Watch(r *proxy.Runner) error {
	timeout := s.options.Timeout
	if timeout == 0 {
		timeout = 2 * r.ResyncInterval
	}
	if r.ResyncInterval <= 0 {
		return errors.New("health: a Runner without a ResyncInterval never verifies its dataplane")
	}
	if timeout <= r.ResyncInterval {
		return fmt.Errorf("health: Timeout is %v, want it longer than the Runner's ResyncInterval of %v", timeout, r.ResyncInterval)
	}
	s.mu.Lock()
	s.fresh.timeout = timeout
	s.mu.Unlock()
	r.Source = source{r.Source, s}
	r.Follow(s.synced, func(proxy.Snapshot) { s.verified() })
	return nil
}

// verified takes that the whole dataplane was found right.
func (s *Server) verified() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh.verify(time.Now())
}

// source notes when a snapshot is taken to be programmed.
type source struct {
	proxy.Source
	server *Server
}

func (s source) Next(ctx context.Context, after proxy.Snapshot) (proxy.Snapshot, error) {
	next, err := s.Source.Next(ctx, after)
	if err == nil {
		s.server.mu.Lock()
		s.server.fresh.queue(time.Now())
		s.server.mu.Unlock()
	}
	return next, err
}

// synced takes the account of an Apply.
func (s *Server) synced(x proxy.Sync) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failed, isPartial := errors.AsType[proxy.PortErrors](x.Err)
	switch {
	case x.Applied.IsZero(), x.Err != nil && !isPartial:
		s.fresh.queue(x.Start)
		return
	case isPartial && len(failed) >= x.Snapshot.Len():
		s.fresh.queue(x.Start) // Nothing works, one by one.
	default:
		s.fresh.achieve(time.Now())
	}
	s.follow(x.Applied)
}

// follow takes what the dataplane holds now.
func (s *Server) follow(next proxy.Snapshot) {
	s.counts.update(next.Changes(s.served))
	s.moved = s.moved || !next.Node().Equal(s.served.Node())
	s.served = next
	if s.moved || len(s.counts.moved) > 0 {
		s.poke()
	}
}

func (s *Server) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Tracker gives a tracker that tells the Server what it hears of the Node, and passes on
// everything to t. Whoever watches API objects hands them to this one, not to t.
func (s *Server) Tracker(t proxy.ServiceChangeTracker) proxy.ServiceChangeTracker {
	return tracker{t, s}
}

type tracker struct {
	proxy.ServiceChangeTracker
	server *Server
}

func (t tracker) UpdateNode(n *v1.Node) {
	t.server.UpdateNode(n)
	t.ServiceChangeTracker.UpdateNode(n)
}

// UpdateNode takes the node's object, or nil when there is none any more;
// objects of other nodes are ignored. It makes the Server a [proxy.NodeHandler].
func (s *Server) UpdateNode(n *v1.Node) {
	if s.options.NodeName == "" || n != nil && n.Name != s.options.NodeName {
		return
	}
	eligible := isEligible(n)
	s.mu.Lock()
	s.eligible = eligible
	s.mu.Unlock()
}

func isEligible(n *v1.Node) bool {
	return n != nil && n.DeletionTimestamp.IsZero() && !slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool {
		return t.Key == "ToBeDeletedByClusterAutoscaler"
	})
}
