package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
	"github.com/vipkit/vipkit/proxy/health"
	"github.com/vipkit/vipkit/proxy/kubewatch"
	"github.com/vipkit/vipkit/proxy/prommetrics"
)

// serve is the running program: it serves in the best mode that works here, until
// ctx ends.
func serve(ctx context.Context, c *config, log logr.Logger) error {
	client, err := c.connect()
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	candidates, err := c.candidates()
	if err != nil {
		return err
	}
	if err := c.Conntrack.prepare(); err != nil {
		log.Info("some parameters stay as they are; -init-only sets them with more privileges", "reason", err.Error())
	}
	for i, choice := range candidates {
		log.Info("mode", "mode", choice.mode, "reason", choice.reason)
		err = serveMode(ctx, c, choice.mode, client, log)
		if i+1 == len(candidates) || !errors.Is(err, proxy.ErrUnsupported) {
			break
		}
		log.Error(err, "this mode cannot work here")
	}
	return err
}

// agent is the program in one mode.
type agent struct {
	*config
	mode    string
	log     logr.Logger
	tracker proxy.TrackerOptions
	metrics *prommetrics.Metrics
	flows   *conntrack.Cleaner
	latest  atomic.Pointer[proxy.Snapshot] // what the dataplane holds
	serving bool
	tidied  bool      // the rules of other modes are gone
	tidyAt  time.Time // when to try that again
	pauses  wait.Backoff
	told    told
}

// serveMode watches the API server, keeps the kernel as it says and answers those
// who ask, until ctx ends or the dataplane turns out not to work at all.
func serveMode(ctx context.Context, c *config, mode string, client kubernetes.Interface, log logr.Logger) (err error) {
	a := &agent{config: c, mode: mode, log: log, pauses: pauses()}
	if a.tracker, err = c.tracker(mode); err != nil {
		return err
	}
	healthz, pages, err := c.addresses()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if a.metrics, err = prommetrics.New(registry, prommetrics.Options{Mode: mode}); err != nil {
		return err
	}
	backend, err := c.open(mode)
	if err != nil {
		return err
	}
	source := &kubewatch.Source{Client: client, NodeName: a.tracker.NodeName, Report: func(err error) { log.Error(err, "API server") }}
	a.flows, err = conntrack.New(conntrack.Options{Foreign: source.Foreign, Observe: func(x conntrack.Account) {
		a.metrics.ConntrackCleaned(x.Family, x.Duration, x.Removed)
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.flows.Close()) }()

	// This is the whole proxy: source tells tracker what the API server says, and
	// runner brings tracker's snapshots into the kernel.
	tracker := a.metrics.Tracker(proxy.NewServiceChangeTracker(a.tracker))
	runner := &proxy.Runner{
		Source: tracker, Backend: a.flows.Wrap(backend), Logger: log, Observe: func(s proxy.Sync) { a.synced(ctx, s) },
		Verified:    func(held proxy.Snapshot) { a.tidy(ctx, held) },
		MinInterval: c.section(mode).MinSyncPeriod.Duration, ResyncInterval: c.resyncInterval(mode),
	}
	a.metrics.Watch(runner)
	server := health.New(health.Options{
		Address: healthz, NodeName: a.tracker.NodeName, Timeout: 2 * max(defaultSync, runner.ResyncInterval),
		Report: a.serverReported, Answered: a.metrics.HealthAnswered, Pages: map[string]http.Handler{pages: a.pages(registry, nodeChecks(backend)...)},
	})
	if err := server.Watch(runner); err != nil {
		return err
	}
	source.Handler = server.Tracker(tracker)
	log.Info("starting", "node", a.tracker.NodeName, "healthz", healthz, "metrics", pages)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beside sync.WaitGroup
	beside.Go(func() { server.Run(ctx) })
	var watching error
	beside.Go(func() { watching = source.Run(ctx) })
	err = runner.Run(ctx)
	cancel()
	beside.Wait()
	return errors.Join(err, watching)
}

// synced takes the account of a sync; the Runner has logged its error.
func (a *agent) synced(ctx context.Context, s proxy.Sync) {
	if !s.Applied.IsZero() {
		a.latest.Store(&s.Applied)
	}
	a.log.V(1).Info("sync", "full", s.Full, "changed", s.Changed, "operations", s.Operations, "took", s.Duration, "ports", s.Snapshot.Len())
	a.told.tell(a.log, slices.Collect(s.Snapshot.Problems()))
	if s.Err != nil || a.serving {
		return
	}
	a.serving = true
	a.tidy(ctx, s.Applied)
	if len(s.Applied.Node().Addresses) == 0 {
		a.log.Info("there is no Node of this name, or it has no address: look at hostnameOverride", "node", a.tracker.NodeName)
	}
	a.log.Info("serving", "ports", s.Applied.Len(), "operations", s.Operations, "took", s.Duration)
}

// pauses are how long rules of other modes that could not be removed are left alone: from
// five seconds on, and in the end for ten minutes, as what keeps them may last.
func pauses() wait.Backoff {
	return wait.Backoff{Duration: 5 * time.Second, Factor: 2, Steps: 20, Cap: 10 * time.Minute}
}

// tidy removes the rules of other modes, unless it has or has just tried. Only when others
// do their work can they go without anybody noticing. Flows that have begun by them until
// then would go on by them, and may lead to endpoints that are no more.
func (a *agent) tidy(ctx context.Context, held proxy.Snapshot) {
	if !a.serving || a.tidied || time.Now().Before(a.tidyAt) {
		return
	}
	left := cleanUp(ctx, a.mode, a.log)
	if left != nil {
		a.log.Error(left, "rules of another mode, or of kube-proxy, are left; this is tried again")
	}
	err := a.flows.Clean(ctx, proxy.Snapshot{}, held)
	if err != nil {
		a.log.Error(err, "flows that went by the rules of another mode, or of kube-proxy, may be left; this is tried again")
	}
	a.tidied, a.tidyAt = left == nil && err == nil, time.Now().Add(a.pauses.Step())
}

// maxTold is how many problems are logged in a minute: whoever makes objects must
// not fill the log.
const maxTold = 100

// told is what is wrong with objects, as it was logged.
type told struct {
	problems []*proxy.Problem
	minute   time.Time // the one in which
	lines    int       // so many problems were new
}

// tell logs the problems that are new.
func (t *told) tell(log logr.Logger, problems []*proxy.Problem) {
	if slices.Equal(problems, t.problems) {
		return // which costs next to nothing, at each sync
	}
	known := map[string]bool{}
	for _, p := range t.problems {
		known[p.Error()] = true
	}
	t.problems = problems
	if time.Since(t.minute) >= time.Minute {
		t.minute, t.lines = time.Now(), 0
	}
	for _, p := range problems {
		text := p.Error()
		if known[text] {
			continue
		}
		switch t.lines++; {
		case t.lines <= maxTold:
			log.Info("object problem", "problem", text)
		case t.lines == maxTold+1:
			log.Info("more object problems than are logged in a minute; /debug/services has them")
		}
	}
}

// serverReported takes that an address cannot be served, or can again.
func (a *agent) serverReported(service types.NamespacedName, err error) {
	what := cmp.Or(strings.TrimPrefix(service.String(), "/"), "healthz")
	if err != nil {
		a.log.Error(err, "HTTP server not listening", "at", what)
		return
	}
	a.log.Info("HTTP server listening again", "at", what)
}
