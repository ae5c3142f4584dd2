package pause

import (
	"context"
	"time"
)

// For waits for a duration, or until the context ends. It returns the context's cause if
// the context has ended, also when d is zero.
func For(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C: // The context may have ended at the same moment.
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}
