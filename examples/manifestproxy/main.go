package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
	"github.com/vipkit/vipkit/proxy/health"
	"github.com/vipkit/vipkit/proxy/inspect"
	"github.com/vipkit/vipkit/proxy/manifest"
	"github.com/vipkit/vipkit/proxy/prommetrics"
)

// resync is the interval at which the runner reads all rules in the kernel and repairs
// drift.
const resync = time.Minute

// errIncomplete is the error of -once if not everything was programmed; the log has the
// reasons.
var errIncomplete = errors.New("not everything could be programmed; see the lines above")

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// run runs the program and gives the exit status.
func run(args []string, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	saveMemory()
	if o.files.demo {
		return demonstrate(o, stderr)
	}
	log := newLog(o, stderr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // A second signal ends the program at once.

	return status(act(ctx, o, log), o, log)
}

// saveMemory makes the garbage collector run early unless GOGC says when: a node has other uses for memory,
// and garbage is rare here.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// newLog returns the program's logger.
func newLog(o options, stderr io.Writer) logr.Logger {
	level := slog.Level(-int(o.verbosity)) // what logr.V(n) becomes in slog
	return logr.FromSlogHandler(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
}

// status logs an error and returns the exit status for it.
func status(err error, o options, log logr.Logger) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, proxy.ErrUnsupported):
		log.Error(err, "backend unsupported on this node: "+o.backend.needs)
	default:
		log.Error(err, "failed")
	}
	return 1
}

// act does what the flags request.
func act(ctx context.Context, o options, log logr.Logger) (err error) {
	b, err := o.backend.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if o.cleanup {
		if err := b.Cleanup(ctx); err != nil {
			return err
		}
		log.Info("all rules are removed")
		return nil
	}
	// This is the whole proxy: source reads files and passes objects to tracker, whose
	// snapshots runner applies to the kernel.
	j := newJournal(log)
	registry := prometheus.NewRegistry()
	metrics, err := prommetrics.New(registry, prommetrics.Options{Mode: o.backend.name, Traffic: o.traffic})
	if err != nil {
		return err
	}
	local := &loopback{at: o.tracker.NodePortAddresses, journal: j, page: inspect.New("Backend " + o.backend.name)}
	tracker := proxy.NewServiceChangeTracker(o.tracker)
	addresses := &clusterIPs{Handler: tracker, log: log, path: o.files.allocations, ranges: o.tracker.ServiceCIDRs}
	defer func() { err = errors.Join(err, addresses.close(), local.close()) }()
	source := newSource(o, addresses, j)
	defer logMissing(ctx, tracker, log)()
	runner := &proxy.Runner{
		Source: tracker, Backend: b, ResyncInterval: resync, Logger: log,
		Observers: []proxy.Observer{{Synced: j.synced}, metrics.Observer(tracker), local.page.Observer(tracker)},
	}
	if b.Abilities().Flows != nil { // The kernel has conntrack entries, also of earlier runs.
		flows, failed := conntrack.New(conntrack.Options{Observe: func(x conntrack.Account) {
			metrics.ConntrackCleaned(x.Family, x.Duration, x.Removed)
		}})
		if failed != nil {
			return fmt.Errorf("%w: %w", proxy.ErrUnsupported, failed)
		}
		defer func() { err = errors.Join(err, flows.Close()) }()
		runner.Flows = flows
	}
	if o.once {
		return once(ctx, source, runner)
	}
	log.Info("watching the manifests", "path", o.files.manifests, "node", o.tracker.NodeName)
	err = follow(ctx, source, runner, health.Options{
		Address: o.healthz, Pages: pages(o.metrics, registry, local.page), Answered: metrics.HealthAnswered, Logger: log,
	}, local)
	if err = errors.Join(err, addresses.close()); err != nil { // A successor can open the file while this program drains.
		return err
	}
	drain(o.drain, log, b.Abilities().Drain, local.drain)
	if o.files.demo { // The rules end with the network namespace.
		return nil
	}
	log.Info("stopped; the rules stay in the kernel, -cleanup removes them")
	return nil
}

// logMissing logs what the tracker waits for, until the result is called.
func logMissing(ctx context.Context, tracker *proxy.ServiceChangeTracker, log logr.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { tracker.LogMissing(ctx, log) })
	return func() { cancel(); wg.Wait() }
}

// newSource returns what reads the files.
func newSource(o options, addresses *clusterIPs, j *journal) *manifest.Source {
	return &manifest.Source{
		Path: o.files.manifests, Handler: addresses, Assign: addresses.assign,
		Logger: j.log, Observe: func(s manifest.Summary) {
			j.passed(s)
			addresses.observed(s)
		},
	}
}

// pages serves the metrics and, for clients on the node, the debug page at an address; nothing if
// that is empty.
func pages(address string, registry *prometheus.Registry, page http.Handler) map[string]http.Handler {
	if address == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /debug/services", inspect.LocalOnly(page))
	return map[string]http.Handler{address: mux}
}

// follow applies changes of the files until ctx ends. It fails if the files cannot be
// watched, or if the server cannot listen at the address of the metrics.
func follow(ctx context.Context, source *manifest.Source, runner *proxy.Runner, o health.Options, beside *loopback) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var reading, serving, failed error
	o.Report = func(service types.NamespacedName, err error) {
		if _, isPage := o.Pages[service.Name]; isPage && service.Namespace == "" && err != nil {
			serving = fmt.Errorf("metrics: %w", err)
			cancel()
		}
	}
	server, err := health.New(o)
	if err != nil {
		return err
	}
	runner.Observers = append(runner.Observers, server.Observer())
	var background sync.WaitGroup
	background.Go(func() { server.Run(ctx) })
	background.Go(func() {
		if failed = beside.serve(ctx, runner.Source); failed != nil {
			cancel()
		}
	})
	background.Go(func() {
		reading = source.Run(ctx)
		cancel()
	})
	err = runner.Run(ctx)
	cancel()
	background.Wait()
	return errors.Join(err, reading, serving, failed)
}

// drain waits until backends are drained, for patience at most. The function of a backend without
// connections of its own is nil.
func drain(patience time.Duration, log logr.Logger, those ...func(context.Context) error) {
	if patience == 0 {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	log.Info("waiting for connections to end; a signal resets them", "atMost", patience)
	var all sync.WaitGroup
	failed := make([]error, len(those))
	for i, end := range those {
		if end != nil {
			all.Go(func() { failed[i] = end(ctx) })
		}
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		log.Info("resetting remaining connections", "reason", err.Error())
	}
}

// once applies the files once. After an error it has still programmed everything that can
// be programmed.
func once(ctx context.Context, source *manifest.Source, runner *proxy.Runner) error {
	warnings, observe := 0, source.Observe
	source.Observe = func(s manifest.Summary) {
		warnings = s.Warnings
		observe(s)
	}
	bad := source.Load(ctx)
	if errors.Is(bad, allocator.ErrFull) {
		bad = source.Load(ctx) // Addresses of deleted Services are free now.
	}
	if _, ok := errors.AsType[*manifest.DocumentError](bad); !ok && bad != nil {
		return bad // Nothing was read, and so there is nothing to program.
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var last proxy.Sync
	runner.Observers = append(runner.Observers, proxy.Observer{Synced: func(s proxy.Sync) {
		last = s
		cancel()
	}})
	if err := runner.Run(ctx); err != nil {
		return err
	}
	switch {
	case last.Snapshot.IsZero():
		return context.Cause(ctx)
	case last.Err != nil && last.Refused == nil:
		return last.Err
	case last.Err != nil: // The Runner ended before it logged that.
		runner.Logger.Error(last.Err, "some service ports are not programmed")
		return errIncomplete
	case bad != nil || warnings > 0 || len(slices.Collect(last.Snapshot.Problems())) > 0:
		return errIncomplete
	}
	return nil
}
