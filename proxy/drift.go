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

// spent charges the time of a resync to the share that resyncs may take.
func (s *runState) spent(d time.Duration) {
	if now := time.Now(); s.paid.Before(now) {
		s.paid = now
	}
	s.paid = s.paid.Add(lookShare * d)
}

// watch starts a goroutine that waits for drift, unless one does or the Backend cannot.
// Waiting that fails is tried again: until then, resyncs find the drift.
func (s *runState) watch(ctx context.Context) {
	w, can := s.Backend.(DriftChecker)
	if !can || s.quiet != nil || s.applied.IsZero() {
		return
	}
	quiet, noticed := context.WithCancel(ctx)
	s.quiet = quiet
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
	if s.quiet != nil && s.quiet.Err() != nil {
		s.quiet, s.hastened = nil, false
	}
}

// hasten makes a resync due soon, because the Backend has noticed drift.
func (s *runState) hasten() {
	s.hastened, s.notices = true, true
	at := time.Now().Add(settling)
	if earliest := s.paid.Add(-lookWindow); at.Before(earliest) {
		at = earliest
	}
	if s.resync.IsZero() || at.Before(s.resync) {
		s.resync = at
	}
	if s.due.IsZero() || s.resync.Before(s.due) {
		s.due = s.resync
	}
}
