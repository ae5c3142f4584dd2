package kubewatch

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Run ends with its context also while it waits to retry an API server.
func TestStopsWhileAPIServerIsUnreachable(t *testing.T) {
	web := httptest.NewServer(nil)
	web.Close() // Its address refuses connections now.
	client, err := NewClient(&rest.Config{Host: web.URL, QPS: -1})
	testenv.NoError(t, err)
	refused := make(chan struct{}, 16)
	s := &Source{
		Client: client, Handler: newRecorder(), NodeName: "n1",
		Report:  func(error) { refused <- struct{}{} },
		backoff: &wait.Backoff{Duration: time.Hour},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for range 4 { // Services, EndpointSlices, the Node, ServiceCIDRs
		<-refused
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Run: %v, want no error", err)
		}
	case <-time.After(limit):
		t.Fatalf("Run still runs %v after the end of its context", limit)
	}
}
