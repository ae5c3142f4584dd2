package pause_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
)

func TestFor(t *testing.T) {
	stop := errors.New("stop")
	for _, c := range []struct {
		name     string
		wait     time.Duration
		end      time.Duration // when the context ends; 0 if it ended before the call
		wantTook time.Duration
		want     error
	}{
		{"duration passes", time.Second, time.Minute, time.Second, nil},
		{"context ends meanwhile", time.Minute, time.Second, time.Second, stop},
		{"context ended before", time.Minute, 0, 0, stop},
		{"zero duration", 0, time.Minute, 0, nil},
		{"negative duration", -time.Second, time.Minute, 0, nil},
		{"zero duration, context ended before", 0, 0, 0, stop},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if c.end == 0 {
					cancel(stop)
				} else {
					defer time.AfterFunc(c.end, func() { cancel(stop) }).Stop()
				}
				start := time.Now()
				if err := pause.For(ctx, c.wait); !errors.Is(err, c.want) {
					t.Errorf("error: got %v, want %v", err, c.want)
				}
				if took := time.Since(start); took != c.wantTook {
					t.Errorf("duration: got %v, want %v", took, c.wantTook)
				}
			})
		})
	}
}

// For returns the cause of a context that ended before the call, even if the duration has
// passed by the time For checks.
func TestContextEndedBefore(t *testing.T) {
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	for range 1000 {
		if err := pause.For(ctx, time.Nanosecond); !errors.Is(err, stop) {
			t.Fatalf("error: got %v, want %v", err, stop)
		}
	}
}
