package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/proxy"
)

// serviceProxy runs on each node of a cluster: it gets Services and EndpointSlices, and programs
// the kernel accordingly.
//
// It consists of three parts. The tracker turns the API objects into a snapshot: all service
// ports as this node must serve them. The backend writes snapshots into the kernel. The runner
// passes each newest snapshot to the backend, and retries after errors.
type serviceProxy struct {
	*proxy.ServiceChangeTracker
	backend proxy.Backend

	synced  chan proxy.Sync // the runner's reports
	applied proxy.Snapshot  // the newest one that awaitApplied has received
	cancel  context.CancelFunc
	ended   chan error
}

// startProxy starts a service proxy on a node.
func startProxy(ctx context.Context, node *netns.NS) (*serviceProxy, error) {
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{
		NodeName: nodeName,
		// LocalTraffic tells the proxy which clients are pods.
		LocalTraffic: proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix(podRange)}},
	})
	p := &serviceProxy{ServiceChangeTracker: tracker, synced: make(chan proxy.Sync), ended: make(chan error, 1)}
	// The backend works in the network namespace in which it is made. A proxy that runs
	// on the node itself just calls New.
	err := node.Do(func() (err error) {
		p.backend, err = nftables.New(nftables.Options{})
		return err
	})
	if err != nil {
		return nil, err
	}
	ctx, p.cancel = context.WithCancel(ctx)
	observer := proxy.Observer{Synced: func(s proxy.Sync) {
		select {
		case p.synced <- s:
		case <-ctx.Done():
		}
	}}
	runner := proxy.Runner{Source: tracker, Backend: p.backend, Observers: []proxy.Observer{observer}}
	go func() { p.ended <- runner.Run(ctx) }()
	return p, nil
}

// awaitApplied waits until the kernel has the changes since the last call, and returns the
// runner's report. Only a demonstration needs to wait.
func (p *serviceProxy) awaitApplied(ctx context.Context) (proxy.Sync, error) {
	for {
		select {
		case s := <-p.synced:
			if s.Err != nil {
				return s, fmt.Errorf("the backend: %w", s.Err)
			}
			if s.Snapshot.Generation() > p.applied.Generation() {
				p.applied = s.Snapshot
				return s, nil
			}
		case <-ctx.Done():
			return proxy.Sync{}, ctx.Err()
		}
	}
}

// stop stops the proxy and removes its kernel objects. A proxy that is about to be restarted
// would leave them in the kernel, so that Services stay reachable.
func (p *serviceProxy) stop(ctx context.Context) error {
	p.cancel()
	err := <-p.ended
	if errors.Is(err, proxy.ErrUnsupported) {
		err = nil // awaitApplied has returned it.
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return errors.Join(err, p.backend.Cleanup(ctx))
}
