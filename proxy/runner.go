package proxy

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/internal/pause"
)

// Defaults of a [Runner].
const (
	defaultRetryInterval = 100 * time.Millisecond
	maxRetryInterval     = 30 * time.Second
)

// Runner drives a Backend from a Source. Source and Backend are required.
type Runner struct {
	// Source delivers the snapshots.
	Source Source
	// Backend applies them.
	Backend Backend
	// MinInterval is the least time between the end of one Apply and the start
	// of the next; changes meanwhile are applied together. Zero applies
	// every change at once.
	MinInterval time.Duration
	// ResyncInterval is the time from one Apply from the zero Snapshot to the next
	// one, whatever is applied in between: a resync reads the dataplane and repairs
	// it. Zero means no resync, except after drift that the Backend notices
	// ([DriftChecker]).
	ResyncInterval time.Duration
	// RetryInterval is the time to the first retry after a failure; zero means 0.1 s.
	// Every further failure in a row doubles it, up to 30 s, or ResyncInterval if that is
	// shorter; a RetryInterval that is longer than this limit is not shortened. A new
	// snapshot is applied at once, and a service port that fails for the first time is
	// retried after RetryInterval, however often others have failed before.
	RetryInterval time.Duration
	// Flows, if not nil, removes flows that the changes of the dataplane made stale;
	// a conntrack.Cleaner does that. Without it, the Runner logs at the start if the Backend
	// needs it (backends.FlowNeeder).
	Flows FlowCleaner
	// Observers follow what the Runner does. Their order makes no difference.
	Observers []Observer
	// Logger gets one line for each failed Apply, and one each time that Flows fails. If the
	// Backend checks settings of the node that break Services (backends.NodeChecker), it
	// also gets, at the start and at each resync, one line for each setting that is found or
	// fixed. The zero value discards them.
	Logger logr.Logger

	watching uint32 //nolint:modernize // 1 or 0; programs may copy a Runner that does not run, and no atomic.Bool
}

// OperationCounter is an optional ability of a [Backend].
type OperationCounter interface {
	// Operations returns the number of kernel operations since the backend was
	// made. One operation is, depending on the backend, an element written,
	// a rule, a call.
	Operations() uint64
}

// DriftChecker is an optional ability of a [Backend]. With it, a resync calls Apply only
// if other programs may have changed the dataplane. If WaitDrift works, the repair of drift
// begins within a tenth of a second instead of after ResyncInterval. Repairs
// take at most a tenth of the time, averaged over a minute: if other programs change the
// dataplane again and again, or after an Apply that took long, a repair may wait until the
// next resync.
type DriftChecker interface {
	// Drifted reports, at little cost, whether another program may have changed
	// the dataplane since the backend last read it. It may return true without
	// need, and never returns false after a change that the backend can see.
	Drifted(ctx context.Context) bool
	// WaitDrift returns nil when Drifted reports true because of a change that the backend
	// has noticed, and an error when ctx ends or the backend cannot wait for drift
	// ([ErrUnsupported]). It may run during Apply; calls of WaitDrift do not overlap.
	WaitDrift(ctx context.Context) error
}

// Run applies the newest snapshot whenever there is a new one, retries what
// failed, and resyncs. It returns nil when ctx ends, leaving the dataplane as it
// is, and an error when the Source fails, the Backend reports
// [ErrUnsupported] for all of its work, or Begin of an Observer fails. A panic in Apply
// counts as a failed Apply. A panic in Drifted counts as drift, one in WaitDrift as an error of
// it; one in CheckNode is logged. Calls of Run do not overlap.
func (r *Runner) Run(ctx context.Context) error {
	if err := r.begin(); err != nil {
		return err
	}
	if r.needsFlows() {
		r.Logger.Info("Flows of the Runner is not set: UDP clients that keep their port do not follow changes of Services; set it to a conntrack.Cleaner")
	}
	ctx, stop := context.WithCancel(ctx)
	s := runState{Runner: r}
	defer atomic.StoreUint32(&r.watching, 0)
	defer s.watchers.Wait()
	defer stop()
	for {
		err := s.wait(ctx)
		if !alive(ctx) {
			return nil
		}
		if err != nil {
			return err
		}
		programmed, followed := s.apply(ctx)
		if !alive(ctx) {
			return nil
		}
		if unsupported(programmed) {
			return fmt.Errorf("backend: %w", programmed)
		}
		s.logFailure(programmed, "some service ports are not programmed; retrying")
		s.logFailure(followed, "stale flows are not removed; retrying")
		_ = pause.For(ctx, r.MinInterval) // The next line checks the context.
		if !alive(ctx) {
			return nil
		}
	}
}

func (s *runState) logFailure(err error, what string) {
	if err != nil {
		s.Logger.Error(err, what, "retryAfter", time.Until(s.due).Round(time.Millisecond).String())
	}
}

// begin checks the required fields and calls Begin of the observers.
func (r *Runner) begin() error {
	if r.Source == nil || r.Backend == nil {
		return errors.New("runner: Source and Backend are required")
	}
	for _, o := range r.Observers {
		if o.Begin == nil {
			continue
		}
		if err := o.Begin(r); err != nil {
			return err
		}
	}
	return nil
}

// unsupported reports whether err says that the backend can program nothing at all.
func unsupported(err error) bool {
	return errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrDataplaneLost) && refused(err) == nil
}

// runState is the state of a Runner while it runs.
type runState struct {
	*Runner
	// want is the newest snapshot; applied what the dataplane holds, the zero
	// Snapshot if that is not known.
	want, applied Snapshot
	// limits are the limits of applied.
	limits limits
	// unverified says that the whole dataplane was found to match applied, but that Verified
	// must wait until Flows has followed.
	unverified bool
	// due is when Apply must run although there is no new snapshot; zero for never.
	due time.Time
	// resync is when an Apply must start from the zero Snapshot; zero for never.
	resync  time.Time
	backoff backoff
	drift   drift
	// watchers are the goroutines that wait for drift.
	watchers sync.WaitGroup
	// found are the problems of the node that were logged.
	found []*Problem
}

// wait returns when there is something to apply.
func (s *runState) wait(ctx context.Context) error {
	for {
		s.watch(ctx)
		fresh, err := s.next(ctx)
		if err != nil {
			return err
		}
		if !fresh && time.Now().Before(s.due) {
			continue // there is drift, and its resync is not due yet
		}
		if s.resync.IsZero() || time.Now().Before(s.resync) {
			return nil
		}
		if s.drifted(ctx) {
			s.applied = Snapshot{} // a resync starts from the zero Snapshot
			return nil
		}
		s.resynced()
		s.drift.repaired = false
		s.checkNode()
		s.verified()
		if fresh || s.backoff.failing() || s.flowsDue() {
			return nil
		}
		s.due = s.resync
	}
}

// next waits for a snapshot, or until Apply is due without one.
func (s *runState) next(ctx context.Context) (fresh bool, err error) {
	next := ctx
	if s.drift.untilDrift != nil && !s.drift.resyncSoon {
		next = s.drift.untilDrift
	}
	if !s.due.IsZero() {
		var cancel context.CancelFunc
		next, cancel = context.WithDeadline(next, s.due)
		defer cancel()
	}
	snapshot, err := s.Source.Next(next, s.want)
	if s.drift.untilDrift != nil && !s.drift.resyncSoon && s.drift.untilDrift.Err() != nil && alive(ctx) {
		s.startResyncSoon()
	}
	switch {
	case err == nil:
		s.want = snapshot
		return true, nil
	case ctx.Err() != nil || !errors.Is(err, next.Err()):
		// The Source has failed, even if Apply became due at the same moment.
		return false, fmt.Errorf("source: %w", err)
	}
	return false, nil
}

// apply returns the errors of the Backend and of Flows.
func (s *runState) apply(ctx context.Context) (programmed, followed error) {
	account := Sync{Snapshot: s.want, Full: s.applied.IsZero(), Start: time.Now()}
	before := s.operations()
	if len(s.Observers) > 0 {
		account.Changed = countChanges(s.applied, s.want)
	}
	if account.Full {
		s.checkNode()
	}
	for _, o := range s.Observers {
		if o.Started != nil {
			o.Started(account)
		}
	}
	programmed, followed = s.program(ctx, &account)
	account.Duration, account.Operations = time.Since(account.Start), s.operations()-before
	s.schedule(&account)
	if account.Full {
		s.chargeRepair(account.Duration)
	}
	for _, o := range s.Observers {
		if o.Synced != nil {
			o.Synced(account)
		}
	}
	s.verify(ctx, &account, programmed == nil || refused(programmed) != nil)
	return programmed, followed
}

// verify calls Verified of the observers when an Apply from the zero Snapshot has made the
// whole dataplane match, and Flows has followed it.
func (s *runState) verify(ctx context.Context, a *Sync, programmed bool) {
	if a.Full {
		s.unverified = programmed && !s.drift.repairedAgain(a.Operations)
	}
	if !s.unverified || !a.achieved() {
		return
	}
	if s.unverified = false; !s.drift.notices || !s.driftsAgain(ctx) {
		s.verified()
	}
}

// program makes the dataplane match the newest snapshot, and then removes the flows that
// this made stale. An error of Flows leaves the dataplane as it is.
func (s *runState) program(ctx context.Context, a *Sync) (programmed, followed error) {
	before := s.applied
	programmed = safely(func() error {
		err := s.Backend.Apply(ctx, s.applied, s.want)
		if a.Full {
			s.handOver() // Also after an error: the next Apply may find less, as this one has removed some.
		}
		return err
	})
	s.applied, a.Err, a.Refused = s.applied.Achieved(s.want, programmed), programmed, refused(programmed)
	if a.achieved() && s.Flows != nil {
		followed = safely(func() error { return s.Flows.Follow(ctx, s.applied, a.Full) })
	}
	if followed != nil {
		s.applied = s.applied.Achieved(s.applied, followed)
		a.Err, a.Refused = errors.Join(programmed, followed), nil
	}
	if c, can := s.Backend.(limitChecker); can {
		s.limits.follow(c, before, s.applied)
	}
	a.Applied, a.Limits = s.applied, s.limits.list
	return programmed, followed
}

// operations returns the Backend's count of operations, 0 if it does not count them.
func (s *runState) operations() uint64 {
	if c, counts := s.Backend.(OperationCounter); counts {
		return c.Operations()
	}
	return 0
}

// flowsDue reports whether Flows has something to do although nothing has changed.
func (s *runState) flowsDue() bool {
	due := s.Flows != nil
	err := safely(func() error {
		due = due && s.Flows.Due()
		return nil
	})
	return due || err != nil
}

// verified calls Verified of the observers, unless Flows has something to follow first.
func (s *runState) verified() {
	if s.unverified {
		return
	}
	for _, o := range s.Observers {
		if o.Verified != nil {
			o.Verified(s.applied)
		}
	}
}

// schedule sets the time of the next Apply after one is done.
func (s *runState) schedule(a *Sync) {
	retry := s.backoff.after(a, s.RetryInterval)
	if a.Full && !s.applied.IsZero() {
		s.resynced()
	}
	if a.Err == nil {
		s.due = s.resync
		return
	}
	if s.ResyncInterval > 0 {
		// The retry may be that of a resync, which must not wait for longer.
		retry = min(retry, max(s.ResyncInterval, s.RetryInterval))
	}
	s.due = time.Now().Add(retry)
	if !s.applied.IsZero() && !s.resync.IsZero() && s.resync.Before(s.due) {
		s.due = s.resync // Failures delay no resync.
	}
}

func countChanges(old, new Snapshot) int {
	n := 0
	for range new.Changes(old) {
		n++
	}
	return n
}

// safely calls f, and returns a panic of f as an error that wraps [ErrDataplaneLost]: a bug
// that one Service triggers must not end the agent that serves all others.
func safely(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", ErrDataplaneLost, p, debug.Stack())
		}
	}()
	return f()
}

func alive(ctx context.Context) bool { return ctx.Err() == nil }
