package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/vipkit/vipkit/internal/problemlog"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
	"github.com/vipkit/vipkit/proxy/health"
	"github.com/vipkit/vipkit/proxy/inspect"
	"github.com/vipkit/vipkit/proxy/kubewatch"
	"github.com/vipkit/vipkit/proxy/prommetrics"
)

// serve serves in the first mode that this node supports, until ctx ends.
func serve(ctx context.Context, c *config, log logr.Logger) error {
	client, err := c.connect()
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	candidates := c.candidates()
	if c.onWindows() {
		log.V(1).Info("no parameters of connection tracking on Windows")
	} else if err := conntrackParameters(&c.Conntrack).Set(); err != nil {
		log.Info("some conntrack parameters not set; run -init-only with more privileges", "reason", err.Error())
	}
	for i, choice := range candidates {
		log.Info("mode", "mode", choice.mode, "reason", choice.reason)
		err = serveMode(ctx, c, choice.mode, client, log)
		if i+1 == len(candidates) || !errors.Is(err, proxy.ErrUnsupported) {
			break
		}
		log.Error(err, "mode unsupported on this node; trying the next")
	}
	return err
}

// instance is the agent in one mode.
type instance struct {
	*config
	mode     string
	log      logr.Logger
	tracker  proxy.TrackerOptions
	metrics  *prommetrics.Metrics
	flows    *conntrack.Cleaner
	page     *inspect.Page
	serving  bool
	cleaned  bool      // the rules of other modes were removed
	cleanAt  time.Time // when to try to remove them again
	pauses   wait.Backoff
	reported struct {
		problems, limits []*proxy.Problem
		loopback         problemlog.Log[*proxy.Problem]
		refusals         refusals
		events           *events
	}
}

// serveMode watches the API server, programs the kernel and serves HTTP, until ctx ends or
// the kernel turns out not to support the mode.
func serveMode(ctx context.Context, c *config, mode string, client kubernetes.Interface, log logr.Logger) (err error) {
	a := &instance{config: c, mode: mode, log: log, tracker: c.tracker(mode), page: inspect.New("Mode " + mode), pauses: pauses()}
	registry, err := a.register()
	if err != nil {
		return err
	}
	backend, end, err := a.open(ctx, client, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	source := &kubewatch.Watcher{Client: client, NodeName: a.tracker.NodeName, Report: func(err error) { a.reported.refusals.report(log, err) }}
	if err := a.followFlows(source); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.closeFlows()) }()

	// This is the whole proxy: source passes objects of the API server to tracker, and
	// runner applies tracker's snapshots to the kernel.
	tracker := proxy.NewServiceChangeTracker(a.tracker)
	source.Handler = tracker
	defer a.handlers.unset()
	a.handlers.pages.set(a.pages(registry))
	server, err := a.newServer(tracker)
	if err != nil {
		return err
	}
	runner := &proxy.Runner{
		Source: tracker, Backend: backend, Logger: log,
		Observers:   append([]proxy.Observer{a.observer(ctx), a.metrics.Observer(tracker), a.page.Observer(tracker), server.Observer()}, a.Hooks.Observers...),
		MinInterval: c.section(mode).MinSyncPeriod.Duration, ResyncInterval: c.resyncInterval(mode),
	}
	if a.flows != nil {
		runner.FlowCleaner = a.flows
	}
	local, err := a.openLoopback(tracker, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.close()) }()
	a.reported.events = newEvents(client, a.tracker.NodeName, log) // run ends its goroutine
	log.Info("starting", "node", a.tracker.NodeName, "healthz", c.healthzAddress, "metrics", c.metricsAddress)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var background sync.WaitGroup
	background.Go(func() { server.Run(ctx) })
	background.Go(func() { tracker.LogMissing(ctx, log) })
	var watching error
	background.Go(func() { a.announceStart(); a.reported.events.run(ctx) })
	background.Go(func() { watching = source.Run(ctx) })
	background.Go(func() { local.run(ctx) })
	err = runner.Run(ctx)
	cancel()
	background.Wait()
	return errors.Join(err, watching)
}

// newServer returns the server of health checks and pages.
func (a *instance) newServer(tracker *proxy.ServiceChangeTracker) (*health.Server, error) {
	pages := map[string]http.Handler{}
	if address := a.metricsAddress; address != "" {
		pages[address] = &a.handlers.pages
	}
	server, err := health.New(health.Options{
		Address: a.healthzAddress, NodeEligible: tracker.NodeEligible, Timeout: 2 * max(defaultSync, a.resyncInterval(a.mode)),
		Logger: a.log, Report: a.announceServer, Answered: a.metrics.HealthAnswered, Pages: pages,
	})
	if err == nil {
		a.handlers.healthz.set(server)
	}
	return server, err
}

// register registers the metrics that do not depend on the backend. The metrics of the process, and of its
// clients of API servers, are in legacyregistry.
func (a *instance) register() (registry *prometheus.Registry, err error) {
	registry = prometheus.NewRegistry()
	if a.metrics, err = prommetrics.New(registry, prommetrics.Options{Mode: a.mode, Traffic: a.ServiceMetrics && a.mode == ipvsMode}); err != nil {
		return nil, err
	}
	return registry, a.registerBuild(registry)
}

// open returns the backend of the mode, and what must be called in the end.
func (a *instance) open(ctx context.Context, client kubernetes.Interface, registry prometheus.Registerer) (b proxy.Backend, end func() error, err error) {
	if a.Hooks.Backend != nil {
		a.cleaned = true // The rules of others stay.
		if b, err = a.Hooks.Backend(a.mode); err != nil {
			return nil, nil, err
		}
		return b, b.Close, nil
	}
	if a.mode == kernelspaceMode {
		b, hns, err := a.serveKernelspace(ctx, client, registry)
		return b, func() error { return errors.Join(b.Close(), hns.Close()) }, err
	}
	if b, err = a.config.open(a.mode); err != nil {
		return nil, nil, err
	}
	end = b.Close
	if a.mode == ipvsMode {
		if err := a.beginIPVS(ctx, a.log); err != nil {
			return nil, nil, errors.Join(err, end())
		}
	}
	return b, end, nil
}

// followFlows opens connection tracking; Windows has none.
func (a *instance) followFlows(source *kubewatch.Watcher) (err error) {
	if a.onWindows() {
		return nil
	}
	a.flows, err = conntrack.New(conntrack.Options{Foreign: source.Foreign, Observe: func(x conntrack.Account) {
		a.metrics.ConntrackCleaned(x.Family, x.Duration, x.Removed)
	}})
	return err
}

func (a *instance) closeFlows() error {
	if a.flows == nil {
		return nil
	}
	return a.flows.Close()
}

// observer returns the methods that the Runner calls.
func (a *instance) observer(ctx context.Context) proxy.Observer {
	return proxy.Observer{
		Synced:   func(s proxy.Sync) { a.synced(ctx, s) },
		Verified: func(applied proxy.Snapshot) { a.removeOtherModes(ctx, applied) },
	}
}

// synced handles a sync; the Runner has logged its error, problems and limits.
func (a *instance) synced(ctx context.Context, s proxy.Sync) {
	if !s.Applied.IsZero() && !slices.Equal(a.reported.limits, s.Limits) {
		a.reported.limits = s.Limits
		a.announceLimits(s.Limits)
	}
	a.log.V(1).Info("sync", "full", s.Full, "changed", s.Changed, "operations", s.Operations, "took", s.Duration, "ports", s.Snapshot.Len())
	if problems := slices.Collect(s.Snapshot.Problems()); !slices.Equal(a.reported.problems, problems) {
		a.reported.problems = problems
		a.announceProblems(problems)
	}
	a.announceRefused(s)
	if a.serving || s.Err != nil && len(s.Refused) == 0 {
		return
	}
	// A refused Service may stay refused, and meanwhile the rules of other modes get stale for all.
	a.serving = true
	a.removeOtherModes(ctx, s.Applied)
	if len(s.Applied.Node().Addresses) == 0 {
		a.log.Info("Node not found or without address: check hostnameOverride", "node", a.tracker.NodeName)
	}
	a.log.Info("serving", "ports", s.Applied.Len(), "refused", len(s.Refused), "operations", s.Operations, "took", s.Duration)
}

// pauses returns the pauses between attempts to remove the rules of other modes: five seconds at
// first, and ten minutes in the end, as the reason for a failure may last.
func pauses() wait.Backoff {
	return wait.Backoff{Duration: 5 * time.Second, Factor: 2, Steps: 20, Cap: 10 * time.Minute}
}

// removeOtherModes removes the rules of other modes, unless it has done so or has just tried.
// It waits until this mode serves, so that no connection fails. It also removes conntrack
// entries of those rules, as they may lead to endpoints that do not exist any more.
func (a *instance) removeOtherModes(ctx context.Context, applied proxy.Snapshot) {
	if !a.serving || a.cleaned || time.Now().Before(a.cleanAt) {
		return
	}
	rules := a.cleanUp(ctx, a.mode, a.log)
	var stale error
	if a.flows != nil {
		stale = a.flows.Clean(ctx, proxy.Snapshot{}, applied)
	}
	a.cleanedUp(rules, stale)
}

// cleanedUp handles the errors of removing rules of other modes, and stale conntrack entries.
func (a *instance) cleanedUp(rules, stale error) {
	a.cleaned = rules == nil && stale == nil
	if rules != nil {
		a.log.Error(rules, "rules of another mode or kube-proxy remain; retrying")
	}
	if stale != nil {
		a.log.Error(stale, "stale conntrack entries of another mode or kube-proxy may remain; retrying")
	}
	a.cleanAt = time.Now().Add(a.pauses.Step())
}
