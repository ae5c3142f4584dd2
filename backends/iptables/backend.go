package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/vipkit/vipkit/proxy"
)

// backend keeps the families apart: each has tables and programs of its own, so
// that what goes wrong in one need not trouble the other.
type backend struct {
	families []proxy.Backend
	watcher  watcher
	// memory is nil where it does not matter how many clients are remembered.
	memory *memory
	// extensions ask whether what was missing is there now.
	extensions []func(context.Context) (news bool, err error)
	// settings looks at the kernel's settings, for a look at everything.
	settings func() error
}

// memory is how many clients of an endpoint the kernel remembers. A module that is
// loaded later, or anew, changes it.
type memory struct {
	renderers []*renderer
	ask       func() uint32
}

// refresh asks again, and reports whether there is news.
func (m *memory) refresh() (news bool) {
	n := m.ask()
	for _, r := range m.renderers {
		news = news || r.remembers != n
		r.remembers = n
	}
	return news
}

// watcher knows whether others may have changed the rules.
type watcher interface {
	begin(ctx context.Context)
	drifted(ctx context.Context) bool
}

// Apply implements [proxy.Backend].
func (b *backend) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	if err := b.begin(ctx, old.IsZero()); err != nil {
		return err
	}
	failed := proxy.PortErrors{}
	var lost, other []error
	for _, f := range b.families {
		var some proxy.PortErrors
		switch err := f.Apply(ctx, old, new); {
		case err == nil:
		case errors.Is(err, proxy.ErrDataplaneLost):
			lost = append(lost, err)
		case errors.As(err, &some):
			maps.Copy(failed, some)
		default:
			other = append(other, err)
		}
	}
	if len(lost)+len(other) == 0 {
		if len(failed) == 0 {
			return nil
		}
		return failed
	}
	asBefore := len(other) == len(b.families) || old.IsZero() // or it was not known before either
	if len(failed) > 0 {
		other = append(other, errors.New(failed.Error())) // as text: they are not the only ones
	}
	if len(lost) == 0 && asBefore {
		return errors.Join(other...)
	}
	err := errors.Join(append(lost, other...)...)
	if len(lost) == 0 {
		err = fmt.Errorf("%w: one IP family of it: %w", proxy.ErrDataplaneLost, err)
	}
	return err
}

// begin looks at what the rules depend on in the kernel.
func (b *backend) begin(ctx context.Context, looksAtAll bool) error {
	if b.memory != nil && b.memory.refresh() && !looksAtAll {
		return fmt.Errorf("%w: the kernel now remembers another number of clients for session affinity", proxy.ErrDataplaneLost)
	}
	for _, ask := range b.extensions {
		switch news, err := ask(ctx); {
		case err != nil:
			return err
		case news && !looksAtAll:
			return fmt.Errorf("%w: an extension of iptables is no longer missing", proxy.ErrDataplaneLost)
		}
	}
	if !looksAtAll {
		return nil
	}
	if err := b.settings(); err != nil {
		return fmt.Errorf("iptables: the settings of the kernel: %w", err)
	}
	b.watcher.begin(ctx)
	return nil
}

// WaitDrift implements [proxy.DriftChecker]. It cannot: rules are looked at by resyncs.
func (*backend) WaitDrift(context.Context) error {
	return fmt.Errorf("iptables: %w: waiting for changes of rules", proxy.ErrUnsupported)
}

// Drifted implements [proxy.DriftChecker].
func (b *backend) Drifted(ctx context.Context) bool { return b.watcher.drifted(ctx) }

// Cleanup implements [proxy.Backend].
func (b *backend) Cleanup(ctx context.Context) error {
	var errs []error
	for _, f := range b.families {
		errs = append(errs, f.Cleanup(ctx))
	}
	return errors.Join(errs...)
}

// Operations implements [proxy.OperationCounter].
func (b *backend) Operations() uint64 {
	var n uint64
	for _, f := range b.families {
		if c, ok := f.(proxy.OperationCounter); ok {
			n += c.Operations()
		}
	}
	return n
}
