package xtables

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Backend is a [proxy.Backend], a [proxy.DriftChecker], a [proxy.OperationCounter] and an
// [io.Closer]. It has one part for each IP family, with tables and programs of its own, so that a
// failure of one does not affect the other.
type Backend struct {
	families []proxy.Backend
	watcher  watcher
	kernels  []counted
	// flavours are those of the tables that the backend writes.
	flavours []Flavour
	// refresh reads the kernel's settings on which rules depend, for each family. full
	// means that a full apply follows; otherwise refresh returns an error if one is needed.
	refresh []func(ctx context.Context, full bool) error
	// held is what Close closes.
	held []io.Closer
}

// watcher reports whether other programs may have changed the rules.
type watcher interface {
	begin(ctx context.Context)
	drifted(ctx context.Context) bool
}

// Apply implements [proxy.Backend].
func (b *Backend) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	if err := b.begin(ctx, old.IsZero()); err != nil {
		return err
	}
	for _, k := range b.kernels {
		k.counts.begin()
	}
	errs := make([]error, len(b.families))
	for i, f := range b.families {
		errs[i] = f.Apply(ctx, old, new)
	}
	return backends.JoinErrors(!old.IsZero(), errs...)
}

// begin reads the kernel's settings on which rules depend, and before a full apply starts to
// watch for changes of other programs.
func (b *Backend) begin(ctx context.Context, full bool) error {
	for _, refresh := range b.refresh {
		if err := refresh(ctx, full); err != nil {
			return err
		}
	}
	if full {
		b.watcher.begin(ctx)
	}
	return nil
}

// WaitDrift implements [proxy.DriftChecker]. It is unsupported; resyncs find drift.
func (*Backend) WaitDrift(context.Context) error {
	return fmt.Errorf("iptables: %w: waiting for changes of rules", proxy.ErrUnsupported)
}

// Drifted implements [proxy.DriftChecker].
func (b *Backend) Drifted(ctx context.Context) bool { return b.watcher.drifted(ctx) }

// CheckLimits implements [backends.LimitChecker].
func (b *Backend) CheckLimits(node *proxy.Node, port *proxy.ServicePort) (all []*proxy.Problem) {
	for _, f := range b.families {
		if c, can := f.(backends.LimitChecker); can {
			all = append(all, c.CheckLimits(node, port)...)
		}
	}
	return all
}

// Close implements [io.Closer].
func (b *Backend) Close() error {
	var errs []error
	for _, c := range b.held {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Cleanup implements [proxy.Backend].
func (b *Backend) Cleanup(ctx context.Context) error {
	var errs []error
	for _, f := range b.families {
		errs = append(errs, f.Cleanup(ctx))
	}
	return errors.Join(errs...)
}

// Operations implements [proxy.OperationCounter].
func (b *Backend) Operations() uint64 {
	var n uint64
	for _, f := range b.families {
		if c, ok := f.(proxy.OperationCounter); ok {
			n += c.Operations()
		}
	}
	return n
}
