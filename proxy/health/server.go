package health

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/vipkit/vipkit/proxy"
)

// Options says what a [Server] serves. The zero value serves the health check
// node ports alone.
type Options struct {
	// Address is where Run serves /healthz and /livez, as host:port;
	// kube-proxy has them at 0.0.0.0:10256. Empty means nowhere.
	Address string
	// Pages are further handlers that Run serves, by host:port, such as metrics: within the
	// same limits, and retried if the address is in use. A handler that needs longer moves
	// the deadlines with [http.ResponseController].
	Pages map[string]http.Handler
	// NodeEligible reports whether load balancers may send new connections to the node: method
	// NodeEligible of a [proxy.ServiceChangeTracker], which is false until the tracker has received
	// its Node: a program that hands over no Nodes leaves it nil, which means that they always may.
	NodeEligible func() bool
	// Timeout is how old the last verified state of the dataplane may be, and
	// how long a change may wait to be programmed, before the proxy counts as
	// unhealthy. Zero means twice the ResyncInterval of the Runner.
	Timeout time.Duration
	// Logger gets a line when a port cannot be served, and one when it is served again, or is not
	// needed any more. The zero value discards them.
	Logger logr.Logger
	// Report, if not nil, is called for each of these lines, for programs that do more than log them;
	// the error is nil for the second one. The zero name means Address, one without a namespace an
	// address of Pages. Run calls it.
	Report func(service types.NamespacedName, err error)
	// Answered, if not nil, is called for each response of /healthz and /livez,
	// from any goroutine.
	Answered func(path string, status int)
}

// Server follows a [proxy.Runner] and serves health checks. Make one
// with [New], put its [Server.Observer] among the Observers of the Runner, and [Server.Run]
// it. All methods may be called from any goroutine.
type Server struct {
	options Options
	// wake has room for one token, which wakes Run.
	wake chan struct{}

	mu     sync.RWMutex
	fresh  freshness
	counts counts
	// served is the last known content of the dataplane.
	served proxy.Snapshot
}

// New returns a Server that follows no Runner yet. The error names the field of an address that
// nothing can listen at, or of a negative timeout.
func New(o Options) (*Server, error) {
	if o.Timeout < 0 {
		return nil, fmt.Errorf("health: Options.Timeout is %v, and must not be negative", o.Timeout)
	}
	if o.Address != "" {
		if err := checkAddress(o.Address); err != nil {
			return nil, fmt.Errorf("health: Options.Address is %q: %w", o.Address, err)
		}
	}
	for _, address := range slices.Sorted(maps.Keys(o.Pages)) {
		if err := checkAddress(address); err != nil {
			return nil, fmt.Errorf("health: Options.Pages has %q: %w", address, err)
		}
	}
	if o.NodeEligible == nil {
		o.NodeEligible = func() bool { return true }
	}
	return &Server{options: o, wake: make(chan struct{}, 1), counts: counts{}}, nil
}

// checkAddress reports why nothing can listen at an address. A host may be a name.
func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("want host:port")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is not the number of a port", port)
	}
	isNumeric := strings.Trim(host, "0123456789.") == ""
	if _, err := netip.ParseAddr(host); err != nil && host != "" && (isNumeric || validation.IsDNS1123Subdomain(strings.ToLower(host)) != nil) {
		return fmt.Errorf("%q is neither an IP address nor the name of a host", host)
	}
	return nil
}

// Observer returns an observer for one Runner, which the Server then follows. Run of the
// Runner fails if its ResyncInterval is zero, or not shorter than the timeout: the proxy
// would count as unhealthy.
func (s *Server) Observer() proxy.Observer {
	return proxy.Observer{Begin: s.begin, Started: s.started, Synced: s.synced, Verified: s.verified}
}

func (s *Server) begin(r *proxy.Runner) error {
	timeout := s.options.Timeout
	if timeout == 0 {
		timeout = 2 * r.ResyncInterval
	}
	if r.ResyncInterval <= 0 {
		return errors.New("health: Runner.ResyncInterval is required: without it the dataplane is never verified")
	}
	if timeout <= r.ResyncInterval {
		return fmt.Errorf("health: Options.Timeout %v must be longer than Runner.ResyncInterval %v", timeout, r.ResyncInterval)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh.timeout = timeout
	return nil
}

// started records that an Apply begins.
func (s *Server) started(x proxy.Sync) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh.queue(x.Start)
}

// verified records that the whole dataplane was found right.
func (s *Server) verified(proxy.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh.verify(time.Now())
}

// synced records the result of an Apply.
func (s *Server) synced(x proxy.Sync) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case x.Err == nil, x.Refused != nil && servesAny(x):
		s.fresh.achieve(time.Now())
	default: // Everything failed, or the dataplane refuses every service port.
		s.fresh.queue(x.Start)
	}
	if x.Applied.IsZero() {
		return // What the dataplane has is not known; it is written again.
	}
	isChanged := s.counts.update(x.Applied.Changes(s.served)) || !x.Applied.Node().Equal(s.served.Node())
	s.served = x.Applied
	if isChanged { // of ports or addresses
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// servesAny reports whether the dataplane has not refused every service port of a snapshot. What
// it refuses may also be removals, which are not in the snapshot.
func servesAny(x proxy.Sync) bool {
	served := x.Snapshot.Len()
	for name := range x.Refused {
		if _, wanted := x.Snapshot.Get(name); wanted {
			served--
		}
	}
	return served > 0
}
