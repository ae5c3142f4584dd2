package xtables

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Backend is a [proxy.Backend], a [proxy.DriftChecker], a [proxy.OperationCounter] and an
// [io.Closer]. It has one part for each IP family, with tables and programs of its own, so that a
// failure of one does not affect the other.
type Backend struct {
	families []proxy.Backend
	watchers []watcher
	kernels  []counted
	// flavours are those of the tables that the backend writes.
	flavours []Flavour
	// lacksIPv6 says that IPv6 is left out, because the kernel does not have it.
	lacksIPv6 bool
	// refresh reads the kernel's settings on which rules depend, for each family. full
	// means that a full apply follows; otherwise refresh returns an error if one is needed.
	refresh []func(ctx context.Context, full bool) error
	// held is what Close closes.
	held []io.Closer
}

// watcher notices changes that other programs make to tables.
type watcher interface {
	// begin is called before everything is read: later changes count.
	begin()
	// commit runs a program that commits to a number of tables, and has an input of some size in
	// bytes. The changes of the program do not count.
	commit(ctx context.Context, tables, size int, run func() error) error
	// drifted reports whether there may have been changes since begin.
	drifted() bool
	// wait returns nil when there has been one.
	wait(ctx context.Context) error
}

// LacksIPv6 reports whether Services of IPv6 are not served because the kernel has no IPv6.
func (b *Backend) LacksIPv6() bool { return b.lacksIPv6 }

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
		for _, w := range b.watchers {
			w.begin()
		}
	}
	return nil
}

// WaitDrift implements [proxy.DriftChecker]: it waits for changes of tables by other programs, all
// in the flavour that uses nf_tables, and those of the number of rules in the legacy flavour.
func (b *Backend) WaitDrift(ctx context.Context) error {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	results := make(chan error, len(b.watchers))
	var all sync.WaitGroup
	for _, w := range b.watchers {
		all.Go(func() { results <- w.wait(waiting) })
	}
	first := <-results
	stop()
	all.Wait()
	return first
}

// Drifted implements [proxy.DriftChecker].
func (b *Backend) Drifted(context.Context) bool {
	return slices.ContainsFunc(b.watchers, watcher.drifted)
}

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
