package proxy

import (
	"errors"
	"fmt"
	"time"
)

// A Runner is a function from a state and an event to the next state and actions ([Runner.step]).
// An executor carries out the actions; the last one results in the next event.

// state is what decides about the actions of a Runner.
type state struct {
	// want is the newest snapshot; applied what the dataplane holds, the zero
	// Snapshot if that is not known.
	want, applied Snapshot
	// pending is when want must be applied: at once if it is new, after a pause if it failed;
	// zero if it was applied.
	pending time.Time
	// resync is when the next resync is due, repair when the one after drift is; zero for
	// never. The resyncs so far have had their share of the time until nextRepair.
	resync, repair, nextRepair time.Time
	// unverified says that the whole dataplane was found to match applied, but that Verified
	// must wait until FlowCleaner has succeeded.
	unverified bool
	// repairs is how many Applies in a row from the zero Snapshot had to change something. The
	// first Apply of all is none: it begins at -1.
	repairs int
	backoff backoff
}

func newState() state { return state{repairs: -1} }

type eventKind int

const (
	eventWoke    eventKind = iota // Waiting has ended without a snapshot.
	eventArrived                  // There is a new snapshot.
	eventFailed                   // The Source has failed.
	eventChecked                  // The backend was asked for drift.
	eventApplied                  // Apply and FlowCleaner are done.
)

// event is what an action resulted in.
type event struct {
	kind     eventKind
	noticed  bool     // The backend has noticed drift.
	snapshot Snapshot // of eventArrived
	err      error    // of eventFailed
	// drifted says whether a resync is needed, flowsDue whether FlowCleaner has something to do.
	drifted, flowsDue bool
	// sync, programmed and followed are the results of an Apply.
	sync                 Sync
	programmed, followed error
}

type actionKind int

const (
	// These result in an event.
	actWait  actionKind = iota // Wait for a snapshot, for drift, or until a time.
	actCheck                   // Ask the backend for drift.
	actApply                   // Apply the newest snapshot.
	// The others do not.
	actCheckNode // Check the settings of the node.
	actVerify    // Call Verified of the observers, unless there is drift again.
	actReport    // Log an error.
	actRest      // Wait for MinInterval.
	actEnd       // End Run.
)

// action is what a Runner does next.
type action struct {
	kind actionKind
	// until is when actWait ends, zero for never, or when what actReport logs is retried.
	until time.Time
	err   error  // of actReport and actEnd
	what  string // of actReport
}

// step returns what follows from an event. It depends on nothing but its arguments and the fields of
// the Runner.
func (r *Runner) step(s state, e event, now time.Time) (state, []action) {
	if e.noticed && s.repair.IsZero() {
		s.repair = later(now.Add(driftDelay), s.nextRepair.Add(-repairWindow))
	}
	switch e.kind {
	case eventArrived:
		s.want, s.pending = e.snapshot, now
	case eventFailed:
		return s, []action{{kind: actEnd, err: e.err}}
	case eventChecked:
		return r.stepChecked(s, e, now)
	case eventApplied:
		return r.stepApplied(s, e, now)
	case eventWoke:
	}
	return s, s.next(now)
}

// next returns what to do when nothing else happens.
func (s *state) next(now time.Time) []action {
	switch {
	case !reached(s.due(), now):
		return []action{{kind: actWait, until: s.due()}}
	case !s.applied.IsZero() && (reached(s.resync, now) || reached(s.repair, now)):
		return []action{{kind: actCheck}}
	}
	return []action{{kind: actApply}}
}

// due returns when something must be done although nothing happens; zero for never. If nothing is
// known of the dataplane, that is the retry of the Apply that failed.
func (s *state) due() time.Time {
	due := s.pending
	if s.applied.IsZero() {
		return due
	}
	for _, at := range [...]time.Time{s.resync, s.repair} {
		if !at.IsZero() && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	return due
}

// stepChecked follows a check at a resync. Without drift the dataplane is right, and nothing delays a
// new snapshot or a retry.
func (r *Runner) stepChecked(s state, e event, now time.Time) (state, []action) {
	if e.drifted {
		s.applied = Snapshot{} // A resync starts from the zero Snapshot.
		return s, []action{{kind: actApply}}
	}
	r.resynced(&s, now)
	s.repairs = 0
	actions := []action{{kind: actCheckNode}}
	if !s.unverified {
		actions = append(actions, action{kind: actVerify})
	}
	if !s.pending.IsZero() || e.flowsDue {
		return s, append(actions, action{kind: actApply})
	}
	return s, append(actions, s.next(now)...)
}

// stepApplied follows an Apply.
func (r *Runner) stepApplied(s state, e event, now time.Time) (state, []action) {
	a := &e.sync
	s.applied = a.Applied
	r.schedule(&s, a, now)
	var actions []action
	if a.Full {
		isProgrammed := e.programmed == nil || refused(e.programmed) != nil
		if isProgrammed {
			s.countRepair(a.Operations)
		}
		// After a single repair the dataplane is right, and the next resync shows whether it
		// stays right. Where two agents undo each other's changes, it is right for a moment
		// after each repair, and wrong most of the time.
		s.unverified = isProgrammed && s.repairs < 2
	}
	if s.unverified && a.achieved() {
		s.unverified = false
		actions = append(actions, action{kind: actVerify})
	}
	if unsupported(e.programmed) {
		return s, append(actions, action{kind: actEnd, err: fmt.Errorf("backend: %w", e.programmed)})
	}
	if e.programmed != nil {
		actions = append(actions, action{kind: actReport, until: s.due(), err: e.programmed, what: unprogrammed(a) + "; retrying"})
	}
	if e.followed != nil {
		actions = append(actions, action{kind: actReport, until: s.due(), err: e.followed, what: "stale flows are not removed; retrying"})
	}
	return s, append(actions, action{kind: actRest}, action{kind: actWait, until: s.due()})
}

// unprogrammed says how many service ports an Apply has not programmed.
func unprogrammed(a *Sync) string {
	all := a.Snapshot.Len()
	if a.Refused == nil && a.Applied.IsZero() {
		return fmt.Sprintf("it is not known which of %d service ports are programmed", all)
	}
	if a.Refused == nil {
		return fmt.Sprintf("no change of %s is programmed", countPorts(all))
	}
	for name := range a.Refused {
		if _, wanted := a.Snapshot.Get(name); !wanted {
			all++ // It could not be removed.
		}
	}
	if len(a.Refused) == 1 {
		return fmt.Sprintf("1 service port of %d is not programmed", all)
	}
	return fmt.Sprintf("%d service ports of %d are not programmed", len(a.Refused), all)
}

// schedule sets the times of what follows an Apply.
func (r *Runner) schedule(s *state, a *Sync, now time.Time) {
	retry := s.backoff.after(a, r.RetryInterval)
	if a.Full && !s.applied.IsZero() {
		r.resynced(s, now)
	}
	if a.Full {
		s.nextRepair = later(s.nextRepair, now).Add(repairShare * a.Duration)
	}
	s.pending = time.Time{}
	if a.Err == nil {
		return
	}
	if r.ResyncInterval > 0 {
		// The retry may be that of a resync, which must not wait for longer.
		retry = min(retry, max(r.ResyncInterval, r.RetryInterval))
	}
	s.pending = now.Add(retry)
}

// resynced schedules the next resync after one is done, which has also repaired noticed drift.
func (r *Runner) resynced(s *state, now time.Time) {
	s.resync, s.repair = time.Time{}, time.Time{}
	if r.ResyncInterval > 0 {
		s.resync = now.Add(r.ResyncInterval)
	}
}

// countRepair counts an Apply from the zero Snapshot.
func (s *state) countRepair(operations uint64) {
	if operations == 0 {
		s.repairs = 0
		return
	}
	s.repairs++
}

// unsupported reports whether err says that the backend can program nothing at all.
func unsupported(err error) bool {
	return errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrDataplaneLost) && refused(err) == nil
}

func reached(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
