package engine

import (
	"context"
	"time"
)

// backoff is how long to wait for something that has failed; zero at first.
type backoff time.Duration

// wait waits, each time for longer, up to a second, or until ctx ends.
func (b *backoff) wait(ctx context.Context) {
	*b = backoff(min(max(2*time.Duration(*b), 5*time.Millisecond), time.Second))
	timer := time.NewTimer(time.Duration(*b))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
