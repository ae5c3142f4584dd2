package host

import (
	"context"
	"time"

	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/internal/pause"
)

// Retry calls open again, with growing pauses, as long as it fails for a cause and the time is not over.
func Retry(ctx context.Context, cause neterr.Cause, end time.Time, open func() error) error {
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second/2) {
		err := open()
		if err == nil || neterr.Of(err) != cause || time.Now().After(end) {
			return err
		}
		if err := pause.For(ctx, delay); err != nil {
			return err
		}
	}
}
