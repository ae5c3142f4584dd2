package stagetest

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// RunClose makes backends in one namespace, uses and closes each. After that no call of WaitDrift may wait, and no
// file may be open.
func RunClose[O any](t *testing.T, options O, open func(O) (proxy.Backend, error)) {
	t.Helper()
	s := NewStage(t, options, open)
	world := proxy.NewSnapshot(Node(), Port(v1.IPv4Protocol, 0, 2), Port(v1.IPv6Protocol, 1, 2))
	s.Apply(t, world)
	// The garbage collector must not close files that Close has left open.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	const times = 10
	before := testenv.OpenFiles(t)
	for range times {
		s.Restart(t)
		s.Apply(t, world)
		waiting := make(chan error, 1)
		go func() { waiting <- waitDrift(t.Context(), s.Backend.Abilities().WaitDrift) }()
		if err := s.Backend.Close(); err != nil {
			t.Error(err)
		}
		if err := <-waiting; err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("WaitDrift after Close: got error %v, want one that it cannot wait", err)
		}
	}
	if now := testenv.OpenFiles(t); now > before {
		t.Errorf("after %d backends: got %d open files, want at most %d as before", times, now, before)
	}
}

// waitDrift calls WaitDrift again and again for a millisecond each, so that one of the calls begins during Close. It
// returns the first result that is not the end of this time.
func waitDrift(ctx context.Context, wait func(context.Context) error) error {
	for {
		short, stop := context.WithTimeout(ctx, time.Millisecond)
		err := wait(short)
		stop()
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}
