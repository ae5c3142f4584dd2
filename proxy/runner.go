package proxy

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
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
	// ResyncInterval is the time between resyncs. A resync reads the dataplane and repairs it,
	// by an Apply from the zero Snapshot. Changes in between do not delay it. Zero means no
	// resync, except after drift that the Backend notices ([Abilities].WaitDrift).
	ResyncInterval time.Duration
	// RetryInterval is the time to the first retry after a failure; zero means 0.1 s.
	// Each further failure in a row doubles the time, up to 30 s, or up to ResyncInterval if that is
	// shorter. If RetryInterval itself is longer, it does not grow. A new snapshot is applied at once. A
	// service port that fails for the first time is retried after RetryInterval, even if other service
	// ports have failed before.
	RetryInterval time.Duration
	// FlowCleaner, if not nil, removes flows that the changes of the dataplane made stale;
	// a conntrack.Cleaner does that. Without it, the Runner logs at the start if the Backend
	// needs it ([Abilities].FoundFrontends).
	FlowCleaner FlowCleaner
	// Observers follow what the Runner does. Their order makes no difference.
	Observers []Observer
	// Logger gets one line for each failed Apply, with how many service ports are not programmed,
	// and one each time that FlowCleaner fails. It gets one line for each of [Snapshot.Problems] and
	// [Sync].Limits that begins or ends: of either at most a hundred in a minute, and one that says
	// that there are more. Settings of the node that break Services have such lines, too, if the
	// Backend checks them ([Abilities].CheckNode), at the start and at each resync. A stack of a
	// panic is the value of "stack". The zero value discards all lines. What a tracker waits for is not in this log:
	// [ServiceChangeTracker.LogMissing] writes it.
	Logger logr.Logger

	watching uint32 //nolint:modernize // 1 or 0; programs may copy a Runner that does not run, and no atomic.Bool
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
	x := executor{Runner: r, able: r.Backend.Abilities()}
	if x.able.FoundFrontends != nil && r.FlowCleaner == nil {
		r.Logger.Info("FlowCleaner of the Runner is not set: UDP clients that keep their port do not follow changes of Services; set it to a conntrack.Cleaner")
	}
	ctx, stop := context.WithCancel(ctx)
	defer atomic.StoreUint32(&r.watching, 0)
	defer x.watchers.Wait()
	defer stop()
	s := newState()
	actions := s.next(time.Now())
	for {
		var e event
		for _, a := range actions {
			switch {
			case a.kind != actVerify && !alive(ctx):
				return nil
			case a.kind == actEnd:
				return a.err
			}
			e = x.do(ctx, &s, a)
		}
		s, actions = r.step(s, e, time.Now())
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

// safely calls f, and returns a panic of f as an error that wraps [ErrDataplaneLost]: a bug
// that one Service triggers must not end the agent that serves all others.
func safely(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return f()
}

// panicError is the error of a panic. It wraps [ErrDataplaneLost].
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("%v: panic: %v", ErrDataplaneLost, e.value) }

func (*panicError) Unwrap() error { return ErrDataplaneLost }

// logError logs an error, and the stack of a panic.
func (r *Runner) logError(err error, what string, values ...any) {
	if p, ok := errors.AsType[*panicError](err); ok {
		values = append(values, "stack", string(p.stack))
	}
	r.Logger.Error(err, what, values...)
}

func alive(ctx context.Context) bool { return ctx.Err() == nil }
