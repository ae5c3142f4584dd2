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

// Watching reports whether the Backend waits for changes of other programs ([DriftChecker]), so that those which
// it can notice are repaired soon after they happen; docs/dataplane says which these are for each backend. The
// next resync finds all others. It may be called from any goroutine.
func (r *Runner) Watching() bool { return atomic.LoadUint32(&r.watching) == 1 }

// driftsAgain reports whether other programs have changed the dataplane since the backend last
// read it. A backend that notices only some changes may always report drift, as it does not
// know about the others: then WaitDrift says whether there was one, unless it fails.
func (x *executor) driftsAgain(ctx context.Context) bool {
	if !x.drifted(ctx) {
		return false
	}
	noticed := x.watch(ctx)
	if noticed == nil {
		return true
	}
	wait := time.NewTimer(driftDelay)
	defer wait.Stop()
	select {
	case <-noticed.Done():
		return true
	case <-wait.C:
		return x.waitFailed.Load()
	}
}

// drifted reports whether other programs may have changed the dataplane; true for a Backend
// that cannot check.
func (x *executor) drifted(ctx context.Context) bool {
	d, can := x.Backend.(DriftChecker)
	if !can {
		return true
	}
	found := true
	if err := safely(func() error { found = d.Drifted(ctx); return nil }); err != nil {
		x.logError(err, "drift check failed; reading the whole dataplane")
	}
	return found
}

// watch returns a context that ends when the backend has noticed drift; nil if the Backend cannot
// wait for drift. A goroutine waits for it, and retries when waiting fails: until then,
// resyncs find the drift.
func (x *executor) watch(ctx context.Context) context.Context {
	w, can := x.Backend.(DriftChecker)
	if !can || x.untilDrift != nil {
		return x.untilDrift
	}
	untilDrift, noticed := context.WithCancel(ctx)
	x.untilDrift = untilDrift
	atomic.StoreUint32(&x.watching, 1)
	x.watchers.Go(func() {
		wait := func() error {
			err := safely(func() error { return w.WaitDrift(ctx) })
			if errors.Is(err, ErrDataplaneLost) {
				x.logError(err, "waiting for drift failed; drift is repaired at the next resync")
			}
			return err
		}
		for err := wait(); err != nil; err = wait() {
			x.waitFailed.Store(true)
			atomic.StoreUint32(&x.watching, 0)
			if errors.Is(err, ErrUnsupported) || pause.For(ctx, maxRetryInterval) != nil {
				return
			}
			x.waitFailed.Store(false)
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
