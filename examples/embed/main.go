// Command embed is the shortest proxy that the library makes: Services and
// EndpointSlices from a folder of manifests become virtual IPs in nf_tables.
// Put your own watch in the place of the manifests.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) != 2 {
		log.Fatal("usage: embed FOLDER")
	}
	backend, err := nftables.New(nftables.Options{})
	if err != nil {
		log.Fatal(err)
	}
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	source := manifest.Source{Path: os.Args[1], Handler: tracker, Report: func(err error) { log.Print(err) }}
	go func() {
		if err := source.Run(ctx); ctx.Err() == nil {
			log.Fatal(err)
		}
	}()
	runner := proxy.Runner{
		Source: tracker, Backend: backend, ResyncInterval: time.Second,
		Observe: func(s proxy.Sync) { log.Printf("%d service ports in %v: %v", s.Changed, s.Duration, s.Err) },
	}
	if err := runner.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
