package health_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
)

// nothing is a backend that programs nothing.
type nothing struct{}

func (nothing) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return nil }
func (nothing) Cleanup(context.Context) error                               { return nil }

// A Server follows a Runner, and answers as long as its context lives.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	tracker.Synced()

	runner := &proxy.Runner{Source: tracker, Backend: nothing{}, ResyncInterval: 30 * time.Second}
	runner.Observe = func(proxy.Sync) { cancel() } // One is enough for an example.
	server := health.New(health.Options{Address: "127.0.0.1:0"})
	if err := server.Watch(runner); err != nil {
		fmt.Println(err)
		return
	}
	stopped := make(chan struct{})
	go func() {
		server.Run(ctx)
		close(stopped)
	}()
	fmt.Println("the runner ended with", runner.Run(ctx))
	<-stopped

	answer := httptest.NewRecorder()
	server.ServeHTTP(answer, httptest.NewRequest("GET", "/healthz", nil))
	fmt.Println("health:", answer.Code)
	// Output:
	// the runner ended with <nil>
	// health: 200
}
