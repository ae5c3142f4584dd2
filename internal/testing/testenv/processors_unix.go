//go:build unix

package testenv

import (
	"syscall"
	"testing"
	"time"
)

// ProcessorTime returns a function that returns the processor time that the process has used
// since. Unlike the time of a clock, it does not depend on other processes. A test that needs it
// must not run in parallel.
func ProcessorTime(t testing.TB) func() time.Duration {
	t.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	start := used()
	return func() time.Duration { return used() - start }
}
