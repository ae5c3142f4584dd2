// Command custombackend is a proxy with a backend of its own: it turns Services and
// EndpointSlices from a folder of manifests into virtual IPs, by nf_tables and the
// program nft. It shows how short a backend can be that passes the conformance suite;
// docs/adding-a-backend.md explains it.
package main

import (
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) != 2 {
		log.Fatal("usage: custombackend FOLDER")
	}
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	watcher := manifest.Watcher{Path: os.Args[1], Handler: tracker, Logger: logr.FromSlogHandler(slog.Default().Handler())}
	go func() {
		if err := watcher.Run(ctx); err != nil {
			log.Fatal(err)
		}
	}()
	runner := proxy.Runner{
		Source: tracker, Backend: backends.New(render, newKernel("nft", "-f", "-")),
		Observers: []proxy.Observer{{Synced: func(s proxy.Sync) {
			log.Printf("%d service ports in %v: %v", s.Changed, s.Duration, s.Err)
		}}},
	}
	if err := runner.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
