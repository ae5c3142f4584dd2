package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/internal/pause"
)

// Defaults of a [Runner].
const (
	// DefaultRetryInterval is how long after a first failure Apply is tried
	// again. Every further failure in a row doubles the time, up to
	// MaxRetryInterval, or ResyncInterval if that is shorter.
	DefaultRetryInterval = 100 * time.Millisecond
	MaxRetryInterval     = 30 * time.Second
)

// Runner drives a Backend from a Source. Source and Backend are required.
type Runner struct {
	Source  Source
	Backend Backend
	// MinInterval is the least time between the end of one Apply and the start
	// of the next; what changes meanwhile goes into one Apply. Zero applies
	// every change at once.
	MinInterval time.Duration
	// ResyncInterval is how long after an Apply from the zero Snapshot the next
	// one from there follows, whatever is applied in between: it looks at what
	// is really there and repairs it. Zero means never, unless the Backend
	// can wait for changes by others ([DriftChecker]).
	ResyncInterval time.Duration
	// RetryInterval is the time to the first retry after a failure; zero means
	// [DefaultRetryInterval]. A new snapshot is applied at once, and what fails
	// of it for the first time is retried after this time, however often
	// something else has failed before.
	RetryInterval time.Duration
	// Observe, if not nil, is called after each Apply, on the Runner's goroutine.
	Observe func(Sync)
	// Verified, if not nil, is called each time the whole dataplane was found
	// to be as the snapshot says: after an Apply from the zero Snapshot, unless the
	// Backend, once its WaitDrift has returned nil, reports that others changed it
	// meanwhile; and when a resync needs no Apply because the Backend knows that
	// nothing was changed ([DriftChecker]). After an Apply that had to repair the
	// dataplane ([OperationCounter]), as the one before it had to, it is not called:
	// others change the dataplane again and again. It is called on the Runner's
	// goroutine, after Observe.
	Verified func(Snapshot)
	// Logger gets one line for each failed Apply; and, where the Backend looks for
	// settings of the node that break Services (backends.NodeChecker), at the start
	// and at each resync, one for each that is found or is mended. The zero value
	// discards them.
	Logger logr.Logger
}

// Sync is the account of one Apply.
type Sync struct {
	// Snapshot is what was to be achieved.
	Snapshot Snapshot
	// Applied is what the dataplane is known to hold afterwards: Snapshot
	// unless there was an Err. It is the zero Snapshot where nothing is known.
	Applied Snapshot
	// Full says that Apply started from the zero Snapshot.
	Full bool
	// Changed is the number of service ports that Apply had to look at.
	Changed int
	// Operations is the number of kernel operations, where the Backend counts
	// them (see [OperationCounter]).
	Operations uint64
	Start      time.Time
	Duration   time.Duration
	// Err is nil, or what Apply returned.
	Err error
}

// OperationCounter is an optional ability of a [Backend].
type OperationCounter interface {
	// Operations gives the number of kernel operations since the backend was
	// made. What is one operation depends on the backend: an element written,
	// a rule, a call.
	Operations() uint64
}

// DriftChecker is an optional ability of a [Backend]. With it, a resync calls Apply only
// if others may have changed the dataplane. If WaitDrift works, the repair of what others
// changed begins within a tenth of a second instead of after ResyncInterval. Repairs
// take at most a tenth of the time, averaged over a minute: where others change the
// dataplane again and again, and after an Apply that took long, one may wait until the
// next resync.
type DriftChecker interface {
	// Drifted reports, at little cost, whether somebody else may have changed
	// the dataplane since it was last looked at. It may say yes without need,
	// and never says no to a change that the backend can see.
	Drifted(ctx context.Context) bool
	// WaitDrift returns nil when Drifted reports true, and an error when ctx
	// ends or the backend cannot wait for drift ([ErrUnsupported]). It may run
	// while Apply does, but not twice at once.
	WaitDrift(ctx context.Context) error
}

// Follow has r call these, and after each what it would have called otherwise. It must not
// be called while r runs.
func (r *Runner) Follow(observe func(Sync), verified func(Snapshot)) {
	r.Observe, r.Verified = both(observe, r.Observe), both(verified, r.Verified)
}

// both gives a function that calls one and then another, which may be nil.
func both[T any](first, then func(T)) func(T) {
	if then == nil {
		return first
	}
	return func(x T) {
		first(x)
		then(x)
	}
}

// Run applies the newest snapshot whenever there is a new one, retries what
// failed, and resyncs. It returns nil when ctx ends, leaving the dataplane as it
// is, and an error when the Source fails or the Backend reports
// [ErrUnsupported] for all of its work. A panic of the Backend counts as a
// failed Apply. A Runner runs once at a time.
func (r *Runner) Run(ctx context.Context) error {
	if r.Source == nil || r.Backend == nil {
		return errors.New("runner: Source and Backend are required")
	}
	ctx, stop := context.WithCancel(ctx)
	s := runState{Runner: r}
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
		if err = s.apply(ctx); !alive(ctx) {
			return nil
		}
		if unsupported(err) {
			return fmt.Errorf("backend: %w", err)
		}
		if err != nil {
			r.Logger.Error(err, "services not all programmed", "retryAfter", time.Until(s.due).Round(time.Millisecond).String())
		}
		_ = pause.For(ctx, r.MinInterval) // Whether the context has ended is looked at next.
		if !alive(ctx) {
			return nil
		}
	}
}

// unsupported reports whether the backend can do nothing at all.
func unsupported(err error) bool {
	var partial PortErrors
	return errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrDataplaneLost) && !errors.As(err, &partial)
}

// runState is what a Runner remembers while it runs.
type runState struct {
	*Runner
	// want is the newest snapshot, applied what the dataplane holds: the zero
	// one where that is not known.
	want, applied Snapshot
	// due is when Apply must run although nothing has changed; zero for never.
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
			s.applied = Snapshot{} // a resync starts from the zero snapshot
			return nil
		}
		s.looked()
		s.drift.repaired = false
		s.checkNode()
		s.verified()
		if fresh || s.backoff.failing() {
			return nil
		}
		s.due = s.resync
	}
}

// next waits for a snapshot, or until Apply is due without one.
func (s *runState) next(ctx context.Context) (fresh bool, err error) {
	next := ctx
	if s.drift.quiet != nil && !s.drift.hastened {
		next = s.drift.quiet
	}
	if !s.due.IsZero() {
		var cancel context.CancelFunc
		next, cancel = context.WithDeadline(next, s.due)
		defer cancel()
	}
	snapshot, err := s.Source.Next(next, s.want)
	if s.drift.quiet != nil && !s.drift.hastened && s.drift.quiet.Err() != nil && alive(ctx) {
		s.hasten()
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

// drifted reports whether others may have changed the dataplane; a Backend that cannot
// tell counts as changed.
func (s *runState) drifted(ctx context.Context) bool {
	d, can := s.Backend.(DriftChecker)
	return !can || s.applied.IsZero() || d.Drifted(ctx)
}

func (s *runState) apply(ctx context.Context) error {
	account := Sync{Snapshot: s.want, Full: s.applied.IsZero(), Start: time.Now()}
	counter, counts := s.Backend.(OperationCounter)
	if counts {
		account.Operations = counter.Operations()
	}
	if s.Observe != nil {
		account.Changed = countChanges(s.applied, s.want)
	}
	if account.Full {
		s.checkNode()
	}
	err := applySafely(ctx, s.Backend, s.applied, s.want)
	account.Duration, account.Err = time.Since(account.Start), err
	if counts {
		account.Operations = counter.Operations() - account.Operations
	}
	s.settle(err)
	if account.Full {
		s.spent(account.Duration)
	}
	account.Applied = s.applied
	if s.Observe != nil {
		s.Observe(account)
	}
	if account.Full && !s.applied.IsZero() && !s.drift.goesOn(account.Operations) && (!s.drift.notices || !s.drifted(ctx)) {
		s.verified()
	}
	return err
}

func (s *runState) verified() {
	if s.Verified != nil {
		s.Verified(s.applied)
	}
}

// settle notes what the dataplane holds after an Apply, and when the next one is due.
func (s *runState) settle(err error) {
	full := s.applied.IsZero()
	retry := s.backoff.after(err, s.RetryInterval)
	var partial PortErrors
	switch {
	case err == nil:
		s.applied = s.want
	case errors.Is(err, ErrDataplaneLost):
		s.applied = Snapshot{}
	case errors.As(err, &partial):
		s.applied = s.want.Revert(s.applied, slices.Collect(maps.Keys(partial))...)
	}
	if full && !s.applied.IsZero() {
		s.looked()
	}
	if err == nil {
		s.due = s.resync
		return
	}
	if s.ResyncInterval > 0 {
		// A resync may be due: no backoff puts it off for longer.
		retry = min(retry, max(s.ResyncInterval, s.RetryInterval))
	}
	s.due = time.Now().Add(retry)
	if !s.applied.IsZero() && !s.resync.IsZero() && s.resync.Before(s.due) {
		s.due = s.resync // What fails delays no look at everything.
	}
}

func countChanges(old, new Snapshot) int {
	n := 0
	for range new.Changes(old) {
		n++
	}
	return n
}

// applySafely turns a panic into an error: a defect that one Service brings to
// light must not end the agent that serves all others.
func applySafely(ctx context.Context, b Backend, old, new Snapshot) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", ErrDataplaneLost, p, debug.Stack())
		}
	}()
	return b.Apply(ctx, old, new)
}

func alive(ctx context.Context) bool { return ctx.Err() == nil }
