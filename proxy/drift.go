package proxy

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
)

// A Runner repairs drift at once. If other programs change the dataplane again and again,
// these resyncs take at most 1/repairShare of the time, averaged over repairWindow.
const (
	repairShare  = 10
	repairWindow = time.Minute
	// driftDelay is how long a resync because of drift waits for further drift, and for
	// the snapshot that another agent of the same node may have applied already.
	driftDelay = 50 * time.Millisecond
)

// Watching reports whether the Backend waits for changes of other programs ([Abilities].WaitDrift), so that those which
// it can notice are repaired soon after they happen; docs/dataplane says which these are for each backend. The
// next resync finds all others. It may be called from any goroutine.
func (r *Runner) Watching() bool { return atomic.LoadUint32(&r.watching) == 1 }

// driftsAgain reports whether other programs have changed the dataplane since the backend last
// read it, if the backend notices such changes. A backend that notices only some may always report
// drift, as it does not know about the others: then WaitDrift says whether there was one, unless it fails.
func (x *executor) driftsAgain(ctx context.Context) bool {
	if !x.notices.Load() || !x.drifted(ctx) {
		return false
	}
	wait := time.NewTimer(driftDelay)
	defer wait.Stop()
	select {
	case <-x.watch(ctx).Done():
		return true
	case <-wait.C:
		return !x.Watching()
	}
}

// drifted reports whether other programs may have changed the dataplane; true for a Backend
// that cannot check.
func (x *executor) drifted(ctx context.Context) bool {
	found := true
	if x.able.Drifted == nil {
		return found
	}
	if err := safely(func() error { found = x.able.Drifted(ctx); return nil }); err != nil {
		x.logError(err, "drift check failed; reading the whole dataplane")
	}
	return found
}

// watch returns a context that ends when the backend has noticed drift; nil if the Backend cannot
// wait for drift. A goroutine waits for it, and retries when waiting fails: until then,
// resyncs find the drift.
func (x *executor) watch(ctx context.Context) context.Context {
	if x.able.WaitDrift == nil || x.untilDrift != nil {
		return x.untilDrift
	}
	untilDrift, noticed := context.WithCancel(ctx)
	x.untilDrift = untilDrift
	atomic.StoreUint32(&x.watching, 1)
	x.watchers.Go(func() {
		wait := func() error {
			err := safely(func() error { return x.able.WaitDrift(ctx) })
			if errors.Is(err, ErrDataplaneLost) {
				x.logError(err, "waiting for drift failed; drift is repaired at the next resync")
			}
			return err
		}
		for wait() != nil {
			atomic.StoreUint32(&x.watching, 0)
			if pause.For(ctx, maxRetryInterval) != nil {
				return
			}
			atomic.StoreUint32(&x.watching, 1)
		}
		x.notices.Store(true)
		noticed()
	})
	return untilDrift
}

// forget drops a notice of drift after the dataplane was read: WaitDrift returns again if there is
// still drift.
func (x *executor) forget() {
	if x.untilDrift != nil && x.untilDrift.Err() != nil {
		x.untilDrift = nil
	}
}
