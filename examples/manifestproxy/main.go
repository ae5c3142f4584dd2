package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
	"github.com/vipkit/vipkit/proxy/manifest"
	"github.com/vipkit/vipkit/proxy/prommetrics"
)

// resync is how often all of the kernel's rules are looked at, whether or not
// anything has changed, and repaired where somebody else has meddled with them.
const resync = time.Minute

// errIncomplete is what -once ends with; the log has told the reasons.
var errIncomplete = errors.New("not everything could be programmed; see the lines before")

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// run is the program; it gives the exit status.
func run(args []string, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	level := slog.Level(-int(o.verbosity)) // what logr.V(n) becomes in slog
	log := logr.FromSlogHandler(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // A second signal ends the program at once.

	err = act(ctx, o, log)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, proxy.ErrUnsupported):
		log.Error(err, "the backend cannot work here: "+o.backend.needs)
	default:
		log.Error(err, "failed")
	}
	return 1
}

// act does what the flags ask for.
func act(ctx context.Context, o options, log logr.Logger) (err error) {
	b, err := o.backend.open()
	if err != nil {
		return err
	}
	if c, ok := b.(io.Closer); ok {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	if o.cleanup {
		if err := b.Cleanup(ctx); err != nil {
			return err
		}
		log.Info("all rules are removed")
		return nil
	}
	// This is the whole proxy: files are read by source, which tells tracker,
	// whose snapshots runner brings into the kernel.
	j := newJournal(log)
	j.node, _ = b.(nodeChecker)
	metrics, registry, err := newMetrics(o.backend.name)
	if err != nil {
		return err
	}
	programmed, stopCleaning, err := clean(b, o, metrics)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopCleaning()) }()
	tracker := metrics.Tracker(proxy.NewServiceChangeTracker(o.tracker))
	source := &manifest.Source{Path: o.manifests, Handler: tracker, Report: j.reported, Observe: j.passed}
	runner := &proxy.Runner{Source: tracker, Backend: programmed, ResyncInterval: resync, Observe: j.synced, Verified: j.verified}
	if o.once {
		return once(ctx, source, runner)
	}
	metrics.Watch(runner)
	server, err := healthServer(o, runner, metrics, log)
	if err != nil {
		return err
	}
	log.Info("following the manifests", "path", o.manifests, "node", o.tracker.NodeName)
	err = follow(ctx, runner, source.Run,
		func(ctx context.Context) error { server.Run(ctx); return nil },
		func(ctx context.Context) error { return serveMetrics(ctx, o.metrics, registry) },
	)
	if err != nil {
		return err
	}
	drain(b, o.drain, log)
	log.Info("stopped; the rules stay in the kernel, -cleanup removes them")
	return nil
}

// clean has UDP and SCTP flows removed that the kernel goes on leading to endpoints of
// before, where it is the kernel that leads them there.
func clean(b proxy.Backend, o options, m *prommetrics.Metrics) (cleaned proxy.Backend, stop func() error, err error) {
	if o.backend.runs {
		return b, func() error { return nil }, nil
	}
	flows, err := conntrack.New(conntrack.Options{Observe: func(x conntrack.Account) {
		m.ConntrackCleaned(x.Family, x.Duration, x.Removed)
	}})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", proxy.ErrUnsupported, err)
	}
	return flows.Wrap(b), flows.Close, nil
}

// drain lets connections end, if the backend carries them, for as long as it may take.
func drain(b proxy.Backend, patience time.Duration, log logr.Logger) {
	d, carries := b.(interface{ Drain(context.Context) error })
	if !carries || patience == 0 {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	log.Info("waiting for connections to end; a signal ends them", "atMost", patience)
	if err := d.Drain(ctx); err != nil {
		log.Info("the connections that are left are reset", "reason", err.Error())
	}
}

// follow keeps the kernel as the files say until ctx ends, or until something
// that runs beside the runner does.
func follow(ctx context.Context, runner *proxy.Runner, beside ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error)
	for _, run := range beside {
		go func() {
			err := run(ctx)
			cancel()
			ended <- err
		}()
	}
	err := runner.Run(ctx)
	cancel()
	for range beside {
		if e := <-ended; !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// once brings the kernel to what the files say now. All that can be programmed
// is, whatever the error.
func once(ctx context.Context, source *manifest.Source, runner *proxy.Runner) error {
	bad := source.Load(ctx)
	for _, err := range split(bad) {
		if _, ok := errors.AsType[*manifest.DocumentError](err); !ok {
			return err // Nothing was read, and so there is nothing to program.
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var last proxy.Sync
	observe := runner.Observe
	runner.Observe = func(s proxy.Sync) {
		observe(s)
		last = s
		cancel()
	}
	if err := runner.Run(ctx); err != nil {
		return err
	}
	_, isPartial := errors.AsType[proxy.PortErrors](last.Err)
	switch {
	case last.Snapshot.IsZero():
		return context.Cause(ctx)
	case last.Err != nil && !isPartial:
		return last.Err
	case bad != nil || last.Err != nil || len(slices.Collect(last.Snapshot.Problems())) > 0:
		return errIncomplete
	}
	return nil
}
