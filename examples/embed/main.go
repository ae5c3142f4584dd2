// Command embed is the shortest proxy built with the library: it turns Services and
// EndpointSlices from a folder of manifests into virtual IPs, by nf_tables.
// Replace the manifests by your own watch.
package main

import (
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 2 {
		log.Fatal("usage: embed FOLDER")
	}
	backend, err := nftables.New(nftables.Options{})
	if err != nil {
		log.Fatal(err)
	}
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	logger := logr.FromSlogHandler(slog.Default().Handler())
	watcher := manifest.Watcher{Path: os.Args[1], Handler: tracker, Logger: logger}
	go func() {
		if err := watcher.Run(ctx); err != nil {
			log.Fatal(err)
		}
	}()
	go tracker.LogMissing(ctx, logger)
	runner := proxy.Runner{
		Source: tracker, Backend: backend, ResyncInterval: time.Second, Logger: logger,
		Observers: []proxy.Observer{{Synced: func(s proxy.Sync) {
			log.Printf("%d service ports in %v: %v", s.Changed, s.Duration, s.Err)
		}}},
	}
	if err := runner.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
