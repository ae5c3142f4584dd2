package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// Options say what an [Agent] serves, and how. The zero value serves as kube-proxy does without a file, in a pod.
type Options struct {
	// Configuration is kube-proxy's. Fields that are nil have kube-proxy's defaults, and nil has all of them. New copies
	// it. The section logging has no effect: Logger decides.
	Configuration *v1alpha1.KubeProxyConfiguration
	// Client is the client of the API server. Without it and RESTConfig, clientConnection of the configuration says
	// where that is.
	Client kubernetes.Interface
	// RESTConfig is what the client is made from.
	RESTConfig *rest.Config
	// NodeName is the name of the Node, in place of hostnameOverride.
	NodeName string
	// Logger gets what the agent has to say. The zero value discards it.
	Logger logr.Logger
	// Hooks let the program take part.
	Hooks Hooks

	// The fields below have no field in kube-proxy's configuration.

	// Identity distinguishes the rules of agents on the same node. With a Name, the agent takes nothing over from
	// kube-proxy, and removes only rules of that name. A Mark of zero is the masqueradeBit of the configuration.
	Identity backends.Identity
	// LocalFallback says what a Local traffic policy does if no local endpoint is ready.
	LocalFallback endpoints.LocalFallback
	// ServiceMetrics adds metrics of each Service, if the mode counts.
	ServiceMetrics bool
	// DrainTimeout is how long endpoints drain in mode ipvs; zero means 15 minutes, less ends connections at once.
	DrainTimeout time.Duration
	// Addresses says where and how mode userspace adds addresses on Windows.
	Addresses userspace.AddressOptions
}

// Hooks let a program take part in what its agent does.
type Hooks struct {
	// Backend, if not nil, opens the backend of a mode in place of the agent's own one. The agent then leaves
	// the rules of other modes and of kube-proxy as they are, and closes the backend in the end.
	Backend func(mode string) (proxy.Backend, error)
	// Observers follow the agent's [proxy.Runner], beside its own ones.
	Observers []proxy.Observer
	// NoListen says that nothing listens at healthzBindAddress and metricsBindAddress: the program serves
	// [Agent.Healthz] and [Agent.Pages] itself, or not at all. Health check node ports are served all the same.
	NoListen bool
}

// Agent serves Services on a node, in place of kube-proxy.
type Agent struct {
	config *config
	log    logr.Logger
}

// New returns an agent. Its error has a line for each value that is wrong, with the path of the field. New changes
// nothing on the node, and does not connect.
func New(o Options) (*Agent, error) {
	c := newConfig(runtime.GOOS)
	if o.Configuration != nil {
		c.KubeProxyConfiguration = *o.Configuration.DeepCopy()
		setDefaults(&c.KubeProxyConfiguration)
	}
	c.HostnameOverride = cmp.Or(o.NodeName, c.HostnameOverride)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, c.DrainTimeout)
	c.Options = o
	errs := []error{c.validate(c.settings()), c.checkIdentity()}
	if o.Client != nil && o.RESTConfig != nil {
		errs = append(errs, errors.New("the options Client and RESTConfig exclude each other"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c.report(slog.New(logr.ToSlogHandler(o.Logger)))
	return &Agent{config: c, log: o.Logger}, nil
}

// checkIdentity checks the identity.
func (c *config) checkIdentity() error {
	if c.onWindows() && c.Identity != (backends.Identity{}) {
		return errors.New("identity: on Windows, want none")
	}
	_, err := c.Identity.Complete(backends.Identity{Name: backends.DefaultName, Mark: 1})
	return err
}

// Run serves until ctx ends, and then returns nil. The rules stay in the kernel, and the next agent adopts them; those
// of mode userspace end. Run must not be called again while it runs.
func (a *Agent) Run(ctx context.Context) error { return serve(ctx, a.config, a.log) }

// PrepareNode sets the parameters of the kernel that need more privileges than CAP_NET_ADMIN, which Run then need
// not have.
func (a *Agent) PrepareNode(ctx context.Context) error { return a.config.prepareNode(ctx, a.log) }

// Cleanup removes all rules of the agent, and, without a name in its Identity, the rules of kube-proxy. The agent must
// not run.
func (a *Agent) Cleanup(ctx context.Context) error {
	c := *a.config
	c.cleanup = true
	_, err := c.cleanUpAll(ctx, a.log)
	return err
}

// Healthz returns the handler of the paths /healthz and /livez; other paths are not found. [http.StripPrefix] serves it
// below another path. It answers 503 until the agent serves, and after Run has returned: Services then stay as they were
// at the end of Run, and endpoints that end are not replaced, so that load balancers had better use other nodes.
func (a *Agent) Healthz() http.Handler { return &a.config.handlers.healthz }

// Pages returns the handler of the path /metrics and of the pages about the agent, at the paths that the command serves.
// It answers 503 until the agent serves, and after Run has returned.
func (a *Agent) Pages() http.Handler { return &a.config.handlers.pages }

// handlers are the HTTP handlers of an agent.
type handlers struct{ healthz, pages whileServing }

// unset has the handlers answer as before the agent has served.
func (h *handlers) unset() {
	h.healthz.handler.Store(nil)
	h.pages.handler.Store(nil)
}

// whileServing is a handler that the agent has while it serves.
type whileServing struct {
	handler atomic.Pointer[http.Handler]
}

func (s *whileServing) set(h http.Handler) { s.handler.Store(&h) }

// ServeHTTP implements [http.Handler].
func (s *whileServing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := s.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	http.Error(w, "the agent does not serve", http.StatusServiceUnavailable)
}
