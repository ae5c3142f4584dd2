package engine

import (
	"context"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
)

// backoff is the last delay before a retry; zero before the first one.
type backoff time.Duration

// wait doubles the delay, from 5 ms up to a second, and waits for it or until ctx ends.
func (b *backoff) wait(ctx context.Context) {
	*b = backoff(min(max(2*time.Duration(*b), 5*time.Millisecond), time.Second))
	_ = pause.For(ctx, time.Duration(*b)) // The caller checks ctx.
}
