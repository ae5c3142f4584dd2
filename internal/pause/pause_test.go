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
		end      time.Duration // of the context; 0 for one that has ended before
		wantTook time.Duration
		want     error
	}{
		{"long enough", time.Second, time.Minute, time.Second, nil},
		{"interrupted", time.Minute, time.Second, time.Second, stop},
		{"too late", time.Minute, 0, 0, stop},
		{"nothing", 0, time.Minute, 0, nil},
		{"less than nothing", -time.Second, time.Minute, 0, nil},
		{"nothing, too late", 0, 0, 0, stop},
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
					t.Errorf("error %v, want %v", err, c.want)
				}
				if took := time.Since(start); took != c.wantTook {
					t.Errorf("took %v, want %v", took, c.wantTook)
				}
			})
		})
	}
}

// An end that came before is told, though the wait is over when anybody looks.
func TestEndsAreTold(t *testing.T) {
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	for range 1000 {
		if err := pause.For(ctx, time.Nanosecond); !errors.Is(err, stop) {
			t.Fatalf("error %v, want %v", err, stop)
		}
	}
}
