package main

import (
	"context"
	"errors"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// loopback serves node ports at loopback addresses, by a second Runner beside that of the backend.
type loopback struct {
	at      proxy.NodePortAddresses
	journal *journal
	page    *inspect.Page
}

// serve serves until ctx ends. It returns at once if no loopback address is selected.
func (l loopback) serve(ctx context.Context, source proxy.Source) error {
	if len(l.at.LoopbackAddresses()) == 0 {
		return nil
	}
	backend, err := userspace.New(userspace.Options{Capture: userspace.Loopback})
	if err != nil {
		return err
	}
	runner := &proxy.Runner{Source: source, Backend: backend, Observers: []proxy.Observer{{Synced: l.synced}}}
	return errors.Join(runner.Run(ctx), backend.Close())
}

// synced logs the service ports that are not served; the Runner tries them again.
func (l loopback) synced(s proxy.Sync) {
	limits := s.Refused.Problems()
	if s.Err != nil && s.Refused == nil {
		limits = []*proxy.Problem{{Kind: "Node", Field: "loopback addresses", Err: s.Err}}
	}
	l.page.SetLimits(limits)
	update(l.journal.log, &l.journal.loopback, limits)
}
