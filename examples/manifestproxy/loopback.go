package main

import (
	"context"
	"errors"
	"sync"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// serveLoopback serves node ports at the loopback addresses that are selected, if any are, until ctx ends
// or stop is called: by a second Runner, beside that of the backend.
func serveLoopback(ctx context.Context, source proxy.Source, at proxy.NodePortAddresses, j *journal, page *inspect.Page) (stop func() error, err error) {
	if len(at.LoopbackAddresses()) == 0 {
		return func() error { return nil }, nil
	}
	backend, err := userspace.New(userspace.Options{Capture: userspace.Loopback})
	if err != nil {
		return nil, err
	}
	runner := &proxy.Runner{Source: source, Backend: backend, Observers: []proxy.Observer{{Synced: func(s proxy.Sync) {
		limits := s.Refused.Problems()
		if s.Err != nil && s.Refused == nil {
			limits = []*proxy.Problem{{Kind: "Node", Field: "loopback addresses", Err: s.Err}}
		}
		page.SetLimits(limits)
		update(j.log, &j.loopback, limits)
	}}}}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	var failed error
	running.Go(func() { failed = runner.Run(ctx) })
	return func() error {
		cancel()
		running.Wait()
		return errors.Join(failed, backend.Close())
	}, nil
}
