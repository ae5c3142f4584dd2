package stagetest

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// RunClose makes backends in one namespace, uses and closes each. What is programmed must
// stay, no call of WaitDrift may wait any more, and no file may stay open.
func RunClose[O any](t *testing.T, options O, open func(O) (proxy.Backend, error)) {
	t.Helper()
	s := NewStage(t, options, open)
	world := proxy.NewSnapshot(Node(), Port(v1.IPv4Protocol, 0, 2), Port(v1.IPv6Protocol, 1, 2))
	s.Apply(t, world)
	// The garbage collector must not close files that Close has left open.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	const times = 10
	before := Descriptors(t)
	for range times {
		s.Restart(t)
		operations := s.Operations(t)
		s.Apply(t, world)
		if n := s.Operations(t) - operations; n != 0 {
			t.Errorf("after a restart: got %d operations, want none: Close must leave what is programmed", n)
		}
		waiting := make(chan error, 1)
		go func() { waiting <- waitDrift(t.Context(), s.Backend.Abilities().WaitDrift) }()
		if err := s.Backend.Close(); err != nil {
			t.Error(err)
		}
		if err := <-waiting; err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("WaitDrift after Close: got error %v, want one that it cannot wait", err)
		}
	}
	if now := Descriptors(t); now > before {
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

// Descriptors returns the number of open files of the process.
func Descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	testenv.NoError(t, err)
	return len(all)
}
