package kubewatch

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Run ends at once with its context also in the longest pause between attempts to reach an API server.
func TestStopsWhileAPIServerIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last atomic.Pointer[time.Time]
		refuse := func(context.Context, string, string) (net.Conn, error) {
			now := time.Now()
			last.Store(&now)
			return nil, syscall.ECONNREFUSED
		}
		client, err := NewClient(&rest.Config{Host: "http://192.0.2.1", QPS: -1, Dial: refuse})
		testenv.NoError(t, err)
		s := &Watcher{Client: client, Handler: newRecorder(), NodeName: "n1"}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		cancel()
		end := time.Now()
		if err := <-done; err != nil {
			t.Errorf("Run: %v, want no error", err)
		}
		if late := time.Since(end); late > 0 {
			t.Errorf("Run ended %v after its context, want at once", late)
		}
		if ago := end.Sub(*last.Load()); ago > 5*time.Second {
			t.Errorf("the last attempt was %v before the end, want at most 5 s", ago)
		}
	})
}
