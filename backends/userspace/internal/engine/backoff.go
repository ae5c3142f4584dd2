package engine

import (
	"context"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
)

// backoff is how long to wait for something that has failed; zero at first.
type backoff time.Duration

// wait waits, each time for longer, up to a second, or until ctx ends.
func (b *backoff) wait(ctx context.Context) {
	*b = backoff(min(max(2*time.Duration(*b), 5*time.Millisecond), time.Second))
	_ = pause.For(ctx, time.Duration(*b)) // Who waits looks at ctx himself.
}
