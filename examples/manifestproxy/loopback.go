package main

import (
	"context"
	"strings"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/problemlog"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// loopback serves node ports at loopback addresses, by a second Runner beside that of the backend.
type loopback struct {
	at       proxy.NodePortAddresses
	journal  *journal
	page     *inspect.Page
	problems problemlog.Log[*proxy.Problem]
	backend  *userspace.Backend // nil until open has made it
}

// serve serves until ctx ends. It returns at once if no loopback address is selected. Connections stay
// open until close.
func (l *loopback) serve(ctx context.Context, source proxy.Source) error {
	if len(l.at.LoopbackAddresses()) == 0 {
		return nil
	}
	runner, err := l.open(source)
	if err != nil {
		return err
	}
	return runner.Run(ctx)
}

// open makes the backend, and returns the Runner that feeds it.
func (l *loopback) open(source proxy.Source) (runner *proxy.Runner, err error) {
	if l.backend, err = userspace.New(userspace.Options{Capture: userspace.Loopback}); err != nil {
		return nil, err
	}
	return &proxy.Runner{Source: source, Backend: l.backend, Observers: []proxy.Observer{{Synced: l.synced}}}, nil
}

// drain is [userspace.Backend.Drain].
func (l *loopback) drain(ctx context.Context) error {
	if l.backend == nil {
		return nil
	}
	return l.backend.Drain(ctx)
}

func (l *loopback) close() error {
	if l.backend == nil {
		return nil
	}
	return l.backend.Close()
}

// synced logs the service ports that are not served; the Runner tries them again.
func (l *loopback) synced(s proxy.Sync) {
	limits := s.Refused.Problems()
	if s.Err != nil && s.Refused == nil {
		limits = []*proxy.Problem{{Kind: "Node", Field: "loopback addresses", Err: s.Err}}
	}
	l.page.SetLimits(limits)
	l.problems.Update(l.journal.log, "node port not served at loopback addresses", limits, func(p *proxy.Problem) ([]any, error) {
		return []any{"kind", p.Kind, "object", strings.TrimPrefix(p.NamespacedName.String(), "/"), "field", p.Field}, p.Err
	})
}
