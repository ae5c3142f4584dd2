package health_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
)

// nothing is a backend that does nothing.
type nothing struct{ proxy.NoAbilities }

func (nothing) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return nil }
func (nothing) Cleanup(context.Context) error                               { return nil }

// A Server follows a Runner, and serves until its context ends.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	tracker.Synced()

	server, err := health.New(health.Options{Address: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	runner := &proxy.Runner{Source: tracker, Backend: nothing{}, ResyncInterval: 30 * time.Second, Observers: []proxy.Observer{
		{Synced: func(proxy.Sync) { cancel() }}, // One is enough for an example.
		server.Observer(),
	}}
	stopped := make(chan struct{})
	go func() {
		server.Run(ctx)
		close(stopped)
	}()
	fmt.Println("the runner ended with", runner.Run(ctx))
	<-stopped

	response := httptest.NewRecorder()
	server.ServeHTTP(response, httptest.NewRequest("GET", "/healthz", nil))
	fmt.Println("health:", response.Code)
	// Output:
	// the runner ended with <nil>
	// health: 200
}
