package conntrack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vipkit/vipkit/proxy"
)

// Wrap gives a backend that is b with clean flows: each Apply that b achieves, also
// in part, is followed by a Clean. When Clean fails, so does Apply, and the next
// Apply cleans what is left; what b has achieved is not done again, unless that
// Apply begins from the zero Snapshot and b may have drifted. The backend has
// the optional abilities of package proxy as far as b has them. One Cleaner wraps
// one backend.
func (c *Cleaner) Wrap(b proxy.Backend) proxy.Backend { return &wrapped{Backend: b, cleaner: c} }

// wrapped remembers how far the backend and the cleaner are, since one may be
// further than the other and than the caller knows.
type wrapped struct {
	proxy.Backend
	cleaner          *Cleaner
	applied, cleaned proxy.Snapshot
	// behind says that the backend is done and the cleaner is not; everything
	// that the cleaner must take nothing for granted.
	behind, everything bool
}

func (w *wrapped) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	if old.IsZero() {
		w.everything = true
		if !w.behind || w.mayHaveDrifted(ctx) {
			w.applied = proxy.Snapshot{}
		}
	}
	err := w.Backend.Apply(ctx, w.applied, new)
	var partial proxy.PortErrors
	switch {
	case err == nil:
		w.applied = new
	case errors.Is(err, proxy.ErrDataplaneLost):
		w.applied = proxy.Snapshot{}
		return err
	case errors.As(err, &partial):
		w.applied = new.Revert(w.applied, slices.Collect(maps.Keys(partial))...)
	default:
		return err
	}
	unclean := w.clean(ctx)
	w.behind = unclean != nil || !w.cleaner.retry.IsZero()
	return errors.Join(err, unclean)
}

// clean brings the flows to where the backend is. Looking at everything alone
// would miss the frontends that are gone.
func (w *wrapped) clean(ctx context.Context) error {
	if !w.cleaned.IsZero() {
		if err := w.cleaner.Clean(ctx, w.cleaned, w.applied); err != nil {
			return err
		}
	}
	if w.everything || w.cleaned.IsZero() {
		// What was there before this process is no more after the first time.
		swept := serviceCIDRs(w.applied)
		if w.cleaned.IsZero() {
			swept = nil
		}
		if err := w.cleaner.clean(ctx, proxy.Snapshot{}, w.applied, swept); err != nil {
			return err
		}
	}
	w.cleaned, w.everything = w.applied, false
	return nil
}

// Cleanup leaves the flows alone: they go on without rules.
func (w *wrapped) Cleanup(ctx context.Context) error {
	w.applied, w.cleaned = proxy.Snapshot{}, proxy.Snapshot{}
	return w.Backend.Cleanup(ctx)
}

func (w *wrapped) Operations() uint64 {
	if c, ok := w.Backend.(proxy.OperationCounter); ok {
		return c.Operations()
	}
	return 0
}

func (w *wrapped) CheckNode(s proxy.Snapshot) []*proxy.Problem {
	c, ok := w.Backend.(interface {
		CheckNode(s proxy.Snapshot) []*proxy.Problem
	})
	if ok {
		return c.CheckNode(s)
	}
	return nil
}

func (w *wrapped) Drifted(ctx context.Context) bool {
	return w.cleaner.isDue() || w.mayHaveDrifted(ctx)
}

// WaitDrift implements [proxy.DriftChecker], as far as the backend does.
func (w *wrapped) WaitDrift(ctx context.Context) error {
	if d, ok := w.Backend.(proxy.DriftChecker); ok {
		return d.WaitDrift(ctx)
	}
	return fmt.Errorf("%w: waiting for drift", proxy.ErrUnsupported)
}

func (w *wrapped) mayHaveDrifted(ctx context.Context) bool {
	d, ok := w.Backend.(proxy.DriftChecker)
	return !ok || d.Drifted(ctx)
}
