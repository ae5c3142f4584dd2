package nftables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/nodecheck"
	"github.com/vipkit/vipkit/proxy"
)

// engine is the abilities of what [backends.New] returns.
type engine interface {
	proxy.Backend
	proxy.OperationCounter
	proxy.DriftChecker
	backends.FlowNeeder
	backends.Finder
	backends.LimitChecker
	io.Closer
}

// backend adds to the engine what concerns the node: settings that translation needs, and
// backends of other kinds.
type backend struct {
	engine
	instance *kinds.Instance
}

// newBackend returns the backend of a kernel. Tests may have another target around it.
func newBackend(k *kernel, target backends.Target[key, value]) (*backend, error) {
	e, ok := backends.New(k.render, target).(engine)
	if !ok {
		return nil, errors.New("nftables: the engine lacks an ability")
	}
	i, err := kinds.Open(k.options.Identity, kinds.NFTables)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return &backend{e, i}, nil
}

// Apply implements [proxy.Backend].
func (b *backend) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	return b.instance.Succeed(ctx, old, b.engine.Apply(ctx, old, new))
}

// Drifted implements [proxy.DriftChecker].
func (b *backend) Drifted(ctx context.Context) bool {
	return b.instance.Ended() || b.engine.Drifted(ctx)
}

// CheckNode implements [backends.NodeChecker].
func (b *backend) CheckNode(s proxy.Snapshot) []*proxy.Problem {
	return slices.Concat(nodecheck.Translation(s), nodecheck.Firewalls(s), nodecheck.LegacyFirewalls(s), b.instance.CheckNode(s))
}

// Close implements [io.Closer].
func (b *backend) Close() error { return errors.Join(b.instance.Close(), b.engine.Close()) }
