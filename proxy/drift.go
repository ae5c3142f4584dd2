package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
)

// A Runner repairs drift at once. Where others change the dataplane again and again, these
// resyncs take at most 1/lookShare of the time, averaged over lookWindow.
const (
	lookShare  = 10
	lookWindow = time.Minute
	// settling is how long a resync because of drift waits for more of it, and for
	// the snapshot that another agent of the same node may have applied already.
	settling = 50 * time.Millisecond
)

// drift is what a Runner knows about changes of the dataplane by others.
type drift struct {
	// quiet ends when the backend has noticed drift; nil while no goroutine waits
	// for that. hastened says that a resync is due because of it, notices that the
	// backend has ever noticed drift by itself.
	quiet             context.Context
	hastened, notices bool
	// paid is when the resyncs so far will have taken no more than their share of
	// the time, if no other follows.
	paid time.Time
	// known says that the dataplane was known once, repaired that the last look at all
	// of it found something to repair.
	known, repaired bool
}

// goesOn takes note of an Apply from the zero Snapshot, and reports whether both it and the
// one before had to repair something. A single repair is right when it ends, and the next
// look shows whether it stays so. Where two agents undo each other's changes, each repair
// is right for a moment, and packets go wrong most of the time.
func (d *drift) goesOn(operations uint64) bool {
	repairs := d.known && operations > 0
	again := repairs && d.repaired
	d.known, d.repaired = true, repairs
	return again
}

// spent charges the time of a resync to the share that resyncs may take.
func (s *runState) spent(d time.Duration) {
	if now := time.Now(); s.drift.paid.Before(now) {
		s.drift.paid = now
	}
	s.drift.paid = s.drift.paid.Add(lookShare * d)
}

// watch starts a goroutine that waits for drift, unless one does or the Backend cannot.
// Waiting that fails is tried again: until then, resyncs find the drift.
func (s *runState) watch(ctx context.Context) {
	w, can := s.Backend.(DriftChecker)
	if !can || s.drift.quiet != nil || s.applied.IsZero() {
		return
	}
	quiet, noticed := context.WithCancel(ctx)
	s.drift.quiet = quiet
	s.watchers.Go(func() {
		for err := w.WaitDrift(ctx); err != nil; err = w.WaitDrift(ctx) {
			if errors.Is(err, ErrUnsupported) || pause.For(ctx, MaxRetryInterval) != nil {
				return
			}
		}
		noticed()
	})
}

// looked schedules the next resync after one is done, and ends the report of drift that
// it has dealt with.
func (s *runState) looked() {
	s.resync = time.Time{}
	if s.ResyncInterval > 0 {
		s.resync = time.Now().Add(s.ResyncInterval)
	}
	if s.drift.quiet != nil && s.drift.quiet.Err() != nil {
		s.drift.quiet, s.drift.hastened = nil, false
	}
}

// hasten makes a resync due soon, because the Backend has noticed drift.
func (s *runState) hasten() {
	s.drift.hastened, s.drift.notices = true, true
	at := time.Now().Add(settling)
	if earliest := s.drift.paid.Add(-lookWindow); at.Before(earliest) {
		at = earliest
	}
	if s.resync.IsZero() || at.Before(s.resync) {
		s.resync = at
	}
	if s.due.IsZero() || s.resync.Before(s.due) {
		s.due = s.resync
	}
}
