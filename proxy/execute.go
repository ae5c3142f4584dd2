package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
	"github.com/vipkit/vipkit/internal/problemlog"
)

// executor carries out the actions of a Runner, and knows what does not decide about them.
type executor struct {
	*Runner
	able Abilities // of the Backend
	// limits are the limits of what the dataplane holds.
	limits limits
	// What was logged: problems of the snapshot, limits, and settings of the node.
	problems, limited, settings problemlog.Log[*Problem]
	// untilDrift ends when the backend has noticed drift; nil while no goroutine waits
	// for drift. watchers are these goroutines.
	untilDrift context.Context
	watchers   sync.WaitGroup
	// notices says that WaitDrift has returned nil at least once.
	notices atomic.Bool
}

// do carries out an action, and returns the event that it results in. Only the last action of a
// step has one.
func (x *executor) do(ctx context.Context, s *state, a action) event {
	switch a.kind {
	case actWait:
		return x.wait(ctx, s, a.until)
	case actCheck:
		return x.check(ctx)
	case actApply:
		return x.apply(ctx, s)
	case actCheckNode:
		x.checkNode(s.want)
	case actVerify:
		x.verify(ctx, s.applied)
	case actReport:
		x.logError(a.err, a.what, "retryAfter", time.Until(a.until).Round(time.Millisecond).String())
	case actRest:
		_ = pause.For(ctx, x.MinInterval) // The Runner ends if the context has.
	case actEnd: // Run ends.
	}
	return event{}
}

// wait waits for a snapshot, for drift, or until a time.
func (x *executor) wait(ctx context.Context, s *state, until time.Time) event {
	next, drift := ctx, context.Context(nil)
	if s.repair.IsZero() && !s.applied.IsZero() {
		if drift = x.watch(ctx); drift != nil {
			next = drift
		}
	}
	if !until.IsZero() {
		var cancel context.CancelFunc
		next, cancel = context.WithDeadline(next, until)
		defer cancel()
	}
	snapshot, err := x.Source.Next(next, s.want)
	e := event{noticed: drift != nil && drift.Err() != nil}
	switch {
	case err == nil:
		e.kind, e.snapshot = eventArrived, snapshot
	case ctx.Err() != nil || !errors.Is(err, next.Err()):
		// The Source has failed, even if Apply became due at the same moment.
		e.kind, e.err = eventFailed, fmt.Errorf("source: %w", err)
	}
	return e
}

// check looks for drift, without which a resync needs no Apply.
func (x *executor) check(ctx context.Context) event {
	if x.drifted(ctx) {
		return event{kind: eventChecked, drifted: true}
	}
	x.forget()
	return event{kind: eventChecked, flowsDue: x.flowsDue()}
}

// apply makes the dataplane match the newest snapshot.
func (x *executor) apply(ctx context.Context, s *state) event {
	account := Sync{Snapshot: s.want, Full: s.applied.IsZero(), Start: time.Now()}
	before := x.operations()
	if len(x.Observers) > 0 {
		account.Changed = countChanges(s.applied, s.want)
	}
	if account.Full {
		x.checkNode(s.want)
	}
	x.problems.Update(x.Logger, "object problem", s.want.problems.all(), (*Problem).place)
	for _, o := range x.Observers {
		if o.Started != nil {
			o.Started(account)
		}
	}
	programmed, followed := x.program(ctx, s, &account)
	account.Duration, account.Operations = time.Since(account.Start), x.operations()-before
	if account.Full && !account.Applied.IsZero() {
		x.forget()
	}
	for _, o := range x.Observers {
		if o.Synced != nil {
			o.Synced(account)
		}
	}
	return event{kind: eventApplied, sync: account, programmed: programmed, followed: followed}
}

// program makes the dataplane match the newest snapshot, and then removes the flows that
// this made stale. An error of FlowCleaner leaves the dataplane as it is.
func (x *executor) program(ctx context.Context, s *state, a *Sync) (programmed, followed error) {
	programmed = safely(func() error {
		err := x.Backend.Apply(ctx, s.applied, s.want)
		if a.Full && x.able.FoundFrontends != nil {
			found := x.able.FoundFrontends() // Also after an error: the next Apply may find less, as this one has removed some.
			if x.FlowCleaner != nil {
				x.FlowCleaner.AddFrontends(found)
			}
		}
		return err
	})
	a.Applied, a.Err, a.Refused = s.applied.Achieved(s.want, programmed), programmed, refused(programmed)
	if a.achieved() && x.FlowCleaner != nil {
		followed = safely(func() error { return x.FlowCleaner.RemoveStale(ctx, a.Applied, a.Full) })
	}
	if followed != nil {
		a.Applied = a.Applied.Achieved(a.Applied, followed)
		a.Err, a.Refused = errors.Join(programmed, followed), nil
	}
	if x.able.CheckLimits != nil {
		x.limits.follow(x.able.CheckLimits, s.applied, a.Applied)
	}
	a.Limits = x.limits.list
	if !a.Applied.IsZero() { // Otherwise it is not known which limits there are.
		x.limited.Update(x.Logger, "served with limits", a.Limits, (*Problem).place)
	}
	return programmed, followed
}

// operations returns the Backend's count of operations, 0 if it does not count them.
func (x *executor) operations() uint64 {
	if x.able.Operations == nil {
		return 0
	}
	return x.able.Operations()
}

// flowsDue reports whether FlowCleaner has something to do although nothing has changed.
func (x *executor) flowsDue() bool {
	due := x.FlowCleaner != nil
	err := safely(func() error {
		due = due && x.FlowCleaner.RetryDue()
		return nil
	})
	return due || err != nil
}

// verify calls Verified of the observers, unless the backend notices that other programs have changed
// the dataplane since it was read.
func (x *executor) verify(ctx context.Context, held Snapshot) {
	if x.driftsAgain(ctx) {
		return
	}
	for _, o := range x.Observers {
		if o.Verified != nil {
			o.Verified(held)
		}
	}
}

// checkNode logs settings of the node that begin or cease to break Services.
func (x *executor) checkNode(s Snapshot) {
	if x.able.CheckNode == nil {
		return
	}
	var found []*Problem
	if err := safely(func() error { found = x.able.CheckNode(s); return nil }); err != nil {
		x.logError(err, "check of node settings failed")
		return
	}
	x.settings.Update(x.Logger, "node setting breaks Services", found, (*Problem).place)
}

func countChanges(old, new Snapshot) int {
	n := 0
	for range new.Changes(old) {
		n++
	}
	return n
}
