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

// drift is what a Runner knows about changes of the dataplane by other programs.
type drift struct {
	// untilDrift ends when the backend has noticed drift; nil while no goroutine waits
	// for that. resyncSoon says that a resync is due because of it; notices says
	// that the backend's WaitDrift has returned nil at least once.
	untilDrift          context.Context
	resyncSoon, notices bool
	// waitFailed says that the last WaitDrift failed, so that drift may go unnoticed.
	waitFailed atomic.Bool
	// paid is the time from which on the resyncs so far have taken no more than their share
	// of the time, if no other follows.
	paid time.Time
	// known says that the dataplane was known once; repaired that the last resync
	// found something to repair.
	known, repaired bool
}

// Watching reports whether the Backend waits for changes of other programs ([DriftChecker]), so that those which
// it can notice are repaired soon after they happen; docs/dataplane says which these are for each backend. The
// next resync finds all others. It may be called from any goroutine.
func (r *Runner) Watching() bool { return atomic.LoadUint32(&r.watching) == 1 }

// repairedAgain records an Apply from the zero Snapshot, and reports whether both it and the
// one before had to repair something. After a single repair the dataplane is right, and the
// next resync shows whether it stays right. Where two agents undo each other's changes, it is
// right for a moment after each repair, and wrong most of the time.
func (d *drift) repairedAgain(operations uint64) bool {
	repairs := d.known && operations > 0
	again := repairs && d.repaired
	d.known, d.repaired = true, repairs
	return again
}

// driftsAgain reports whether other programs have changed the dataplane since the backend last
// read it. A backend that notices only some changes may always report drift, as it does not
// know about the others: then WaitDrift says whether there was one, unless it fails.
func (s *runState) driftsAgain(ctx context.Context) bool {
	if !s.drifted(ctx) {
		return false
	}
	s.watch(ctx)
	if s.drift.untilDrift == nil {
		return true
	}
	wait := time.NewTimer(driftDelay)
	defer wait.Stop()
	select {
	case <-s.drift.untilDrift.Done():
		return true
	case <-wait.C:
		return s.drift.waitFailed.Load()
	}
}

// chargeRepair records that a resync took d: it moves paid on by repairShare times d.
func (s *runState) chargeRepair(d time.Duration) {
	if now := time.Now(); s.drift.paid.Before(now) {
		s.drift.paid = now
	}
	s.drift.paid = s.drift.paid.Add(repairShare * d)
}

// drifted reports whether other programs may have changed the dataplane; true for a Backend
// that cannot check.
func (s *runState) drifted(ctx context.Context) bool {
	d, can := s.Backend.(DriftChecker)
	if !can || s.applied.IsZero() {
		return true
	}
	found := true
	if err := safely(func() error { found = d.Drifted(ctx); return nil }); err != nil {
		s.Logger.Error(err, "drift check failed; reading the whole dataplane")
	}
	return found
}

// watch starts a goroutine that waits for drift, unless one waits already or the Backend
// cannot wait. It retries when waiting fails: until then, resyncs find the drift.
func (s *runState) watch(ctx context.Context) {
	w, can := s.Backend.(DriftChecker)
	if !can || s.drift.untilDrift != nil || s.applied.IsZero() {
		return
	}
	untilDrift, noticed := context.WithCancel(ctx)
	s.drift.untilDrift = untilDrift
	atomic.StoreUint32(&s.watching, 1)
	s.watchers.Go(func() {
		wait := func() error {
			err := safely(func() error { return w.WaitDrift(ctx) })
			if errors.Is(err, ErrDataplaneLost) {
				s.Logger.Error(err, "waiting for drift failed; drift is repaired at the next resync")
			}
			return err
		}
		for err := wait(); err != nil; err = wait() {
			s.drift.waitFailed.Store(true)
			atomic.StoreUint32(&s.watching, 0)
			if errors.Is(err, ErrUnsupported) || pause.For(ctx, maxRetryInterval) != nil {
				return
			}
			s.drift.waitFailed.Store(false)
			atomic.StoreUint32(&s.watching, 1)
		}
		noticed()
	})
}

// resynced schedules the next resync after one is done, and resets the notice of drift that
// it has repaired.
func (s *runState) resynced() {
	s.resync = time.Time{}
	if s.ResyncInterval > 0 {
		s.resync = time.Now().Add(s.ResyncInterval)
	}
	if s.drift.untilDrift != nil && s.drift.untilDrift.Err() != nil {
		s.drift.untilDrift, s.drift.resyncSoon = nil, false
	}
}

// startResyncSoon makes a resync due soon, because the Backend has noticed drift.
func (s *runState) startResyncSoon() {
	s.drift.resyncSoon, s.drift.notices = true, true
	at := time.Now().Add(driftDelay)
	if earliest := s.drift.paid.Add(-repairWindow); at.Before(earliest) {
		at = earliest
	}
	if s.resync.IsZero() || at.Before(s.resync) {
		s.resync = at
	}
	if s.due.IsZero() || s.resync.Before(s.due) {
		s.due = s.resync
	}
}
