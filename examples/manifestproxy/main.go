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
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

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
	if o.demo {
		return demonstrate(o, stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // A second signal ends the program at once.
	log := newLog(stderr)
	return status(act(ctx, o, log), log)
}

// newLog returns the program's logger.
func newLog(stderr io.Writer) logr.Logger {
	return logr.FromSlogHandler(slog.NewTextHandler(stderr, nil))
}

// status logs an error and returns the exit status for it.
func status(err error, log logr.Logger) int {
	if err != nil {
		log.Error(err, "failed")
		return 1
	}
	return 0
}

// act does what the flags request.
func act(ctx context.Context, o options, log logr.Logger) (err error) {
	b, err := o.open()
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
	// This is the whole proxy: watcher reads files and passes objects to tracker, whose
	// snapshots runner applies to the kernel.
	registry := prometheus.NewRegistry()
	metrics, err := prommetrics.New(registry, prommetrics.Options{Mode: o.backend})
	if err != nil {
		return err
	}
	page := inspect.New("Backend " + o.backend)
	tracker := proxy.NewServiceChangeTracker(o.tracker)
	watcher := &manifest.Watcher{Path: o.manifests, Handler: tracker, Logger: log, Observe: logEmpty(log)}
	runner := &proxy.Runner{
		Source: tracker, Backend: b, ResyncInterval: resync, Logger: log,
		Observers: []proxy.Observer{{Synced: logSync(log)}, metrics.Observer(tracker), page.Observer(tracker)},
	}
	if b.Abilities().FoundFrontends != nil { // The kernel has conntrack entries, also of earlier runs.
		flows, failed := conntrack.New(conntrack.Options{Observe: func(x conntrack.Account) {
			metrics.ConntrackCleaned(x.Family, x.Duration, x.Removed)
		}})
		if failed != nil {
			return fmt.Errorf("%w: %w", proxy.ErrUnsupported, failed)
		}
		defer func() { err = errors.Join(err, flows.Close()) }()
		runner.FlowCleaner = flows
	}
	if o.once {
		return once(ctx, watcher, runner)
	}
	log.Info("watching the manifests", "path", o.manifests, "node", o.tracker.NodeName)
	server, err := health.New(health.Options{
		Address: o.healthz, Pages: pages(o.metrics, registry, page), Answered: metrics.HealthAnswered, Logger: log,
	})
	if err != nil {
		return err
	}
	runner.Observers = append(runner.Observers, server.Observer())
	err = follow(ctx, watcher, runner, server.Run, func(ctx context.Context) { tracker.LogMissing(ctx, log) })
	if err == nil && !o.demo { // The rules of the demo end with its network namespace.
		log.Info("stopped; the rules stay in the kernel, -cleanup removes them")
	}
	return err
}

// logSync returns an observer that logs each sync. The Runner itself logs errors and problems.
func logSync(log logr.Logger) func(proxy.Sync) {
	return func(s proxy.Sync) {
		log.Info("sync", "full", s.Full, "changed", s.Changed, "operations", s.Operations, "took", s.Duration,
			"ports", s.Snapshot.Len(), "failed", s.Err != nil)
	}
}

// logEmpty returns a function that logs a pass without a Service: the path may be wrong.
func logEmpty(log logr.Logger) func(manifest.Summary) {
	return func(s manifest.Summary) {
		if s.Services == 0 {
			log.Info("no Services in the manifests", "files", s.Files, "ignored", s.Ignored)
		}
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

// follow applies changes of the files, and runs what is beside that, until ctx ends.
func follow(ctx context.Context, watcher *manifest.Watcher, runner *proxy.Runner, beside ...func(context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var background sync.WaitGroup
	for _, run := range beside {
		background.Go(func() { run(ctx) })
	}
	var reading error
	background.Go(func() {
		reading = watcher.Run(ctx)
		cancel()
	})
	err := runner.Run(ctx)
	cancel()
	background.Wait()
	return errors.Join(err, reading)
}

// once applies the files once. After an error it has still programmed everything that can
// be programmed.
func once(ctx context.Context, watcher *manifest.Watcher, runner *proxy.Runner) error {
	var read manifest.Summary
	watcher.Observe = func(s manifest.Summary) { read = s }
	err := watcher.Load(ctx)
	if _, isRead := errors.AsType[*manifest.DocumentError](err); err != nil && !isRead {
		return err // Nothing was read, and so there is nothing to program.
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
	switch problems := slices.Collect(last.Snapshot.Problems()); {
	case last.Snapshot.IsZero():
		return context.Cause(ctx)
	case last.Err != nil:
		return last.Err
	case read.Errors+read.Warnings+len(problems) > 0:
		return errIncomplete
	}
	return nil
}
