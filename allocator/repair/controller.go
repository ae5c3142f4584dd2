package repair

import (
	"context"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/pause"
)

// DefaultInterval is how long a controller waits between two passes.
const DefaultInterval = 3 * time.Minute

// minRetry is how soon a controller tries again after an error, at first.
const minRetry = time.Second

// Controller repairs a store at intervals.
type Controller struct {
	// Store is the store to repair.
	Store allocator.Store
	// Owners lists the uses; see [Reconcile].
	Owners func(context.Context) ([]Use, error)
	// Options of every pass.
	Options Options
	// Interval from the end of a pass to the next, [DefaultInterval] unless it is
	// positive. After an error the next pass begins sooner.
	Interval time.Duration
	// Observe, if not nil, gets the findings and the error of each pass, on the
	// goroutine of Run.
	Observe func([]Finding, error)
}

// Run makes passes until ctx ends. The fields must not be changed
// meanwhile. Errors of a pass go to Observe.
func (c *Controller) Run(ctx context.Context) {
	interval := c.Interval
	if interval <= 0 {
		interval = DefaultInterval
	}
	retry, seen := minRetry, &sightings{}
	for ctx.Err() == nil {
		findings, err := reconcile(ctx, c.Store, c.Owners, c.Options, seen)
		if c.Observe != nil {
			c.Observe(findings, err)
		}
		gap := interval
		if err != nil {
			gap = min(retry, interval)
			retry = min(2*retry, interval)
		} else {
			retry = minRetry
		}
		_ = pause.For(ctx, gap) // The loop ends with ctx.
	}
}
