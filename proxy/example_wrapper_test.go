package proxy_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// dataplane is a backend that counts what it writes, and checks the node.
type dataplane struct {
	proxy.NoAbilities
	written uint64
}

func (d *dataplane) Apply(_ context.Context, _, new proxy.Snapshot) error {
	d.written += uint64(new.Len())
	return nil
}

func (d *dataplane) Cleanup(context.Context) error { return nil }

func (d *dataplane) Abilities() proxy.Abilities {
	return proxy.Abilities{
		Operations: func() uint64 { return d.written },
		CheckNode:  func(proxy.Snapshot) []*proxy.Problem { return nil },
	}
}

// traced prints each Apply of a backend, and each check of the node. It embeds the backend, and so
// keeps everything else that the backend can do.
type traced struct{ proxy.Backend }

func (t traced) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	fmt.Println("apply", new.Len(), "service ports")
	return t.Backend.Apply(ctx, old, new)
}

func (t traced) Abilities() proxy.Abilities {
	a := t.Backend.Abilities()
	if check := a.CheckNode; check != nil {
		a.CheckNode = func(s proxy.Snapshot) []*proxy.Problem {
			fmt.Println("check the node")
			return check(s)
		}
	}
	return a
}

// tracedTracker prints each change of a Service. It embeds the tracker, and so keeps everything else.
type tracedTracker struct{ *proxy.ServiceChangeTracker }

func (t tracedTracker) UpdateService(s *v1.Service) {
	fmt.Println("update Service", s.Name)
	t.ServiceChangeTracker.UpdateService(s)
}

// A wrapper of a backend or of a tracker has methods for what it traces, and loses nothing: the Runner
// still counts operations.
func Example_wrapper() {
	tracker := tracedTracker{newTracker()}
	tracker.UpdateService(shop())
	tracker.Synced()
	ctx, cancel := context.WithCancel(context.Background())
	runner := proxy.Runner{Source: tracker, Backend: traced{&dataplane{}}, Observers: []proxy.Observer{{Synced: func(s proxy.Sync) {
		fmt.Println("operations:", s.Operations)
		cancel()
	}}}}
	fmt.Println("ended with", runner.Run(ctx))
	// Output:
	// update Service shop
	// check the node
	// apply 1 service ports
	// operations: 1
	// ended with <nil>
}
