package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/proxy"
)

// newNFTables is one line because all is as usual: the tables are called vipkit.
func newNFTables() (proxy.Backend, error) { return nftables.New(nftables.Options{}) }

// serviceProxy is what runs on each node of a cluster: it is told of Services
// and EndpointSlices, and sees to it that the kernel does what they say.
//
// It consists of three parts. The tracker folds the API objects into a snapshot:
// what this node has to do. The backend writes snapshots into the kernel. The
// runner hands over the newest one whenever there is one, and repeats what
// failed.
type serviceProxy struct {
	proxy.ServiceChangeTracker
	backend proxy.Backend

	observed chan proxy.Sync // what the runner did
	last     proxy.Sync      // the newest of it that settle has seen
	cancel   context.CancelFunc
	ended    chan error
}

// startProxy starts a service proxy on a node.
func startProxy(ctx context.Context, node *netns.NS, newBackend func() (proxy.Backend, error)) (*serviceProxy, error) {
	p := &serviceProxy{
		ServiceChangeTracker: proxy.NewServiceChangeTracker(proxy.TrackerOptions{
			NodeName: nodeName,
			// With this the proxy can tell pods from clients outside.
			LocalTraffic: proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix(podRange)}},
		}),
		observed: make(chan proxy.Sync),
		ended:    make(chan error, 1),
	}
	// The backend belongs to the network namespace that it is made in. A proxy
	// that runs on the node itself just calls New.
	err := node.Do(func() (err error) {
		p.backend, err = newBackend()
		return err
	})
	if err != nil {
		return nil, err
	}
	ctx, p.cancel = context.WithCancel(ctx)
	runner := proxy.Runner{Source: p, Backend: p.backend, Observe: func(s proxy.Sync) {
		select {
		case p.observed <- s:
		case <-ctx.Done():
		}
	}}
	go func() { p.ended <- runner.Run(ctx) }()
	return p, nil
}

// settle waits until the kernel does what the proxy has been told, and gives the
// runner's account of it. Only a demonstration has to wait.
func (p *serviceProxy) settle(ctx context.Context) (proxy.Sync, error) {
	want, err := p.Next(ctx, p.last.Snapshot)
	if err != nil {
		return proxy.Sync{}, err
	}
	for p.last.Snapshot.Generation() < want.Generation() {
		select {
		case p.last = <-p.observed:
		case <-ctx.Done():
			return proxy.Sync{}, ctx.Err()
		}
		if p.last.Err != nil {
			return proxy.Sync{}, fmt.Errorf("the backend: %w", p.last.Err)
		}
	}
	return p.last, nil
}

// stop ends the proxy and takes out of the kernel what it put there. A proxy
// that is about to be started again would leave it, and so keep services
// reachable meanwhile.
func (p *serviceProxy) stop(ctx context.Context) error {
	p.cancel()
	err := <-p.ended
	if errors.Is(err, proxy.ErrUnsupported) {
		err = nil // settle has said so.
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return errors.Join(err, p.backend.Cleanup(ctx))
}
