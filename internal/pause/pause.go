package pause

import (
	"context"
	"time"
)

// For waits for a duration. When the context ends before, so does the wait, with the
// context's cause; without a wait, too, the error says whether the context has ended.
func For(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C: // A busy machine may tell that at once with the end of the context.
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}
