//go:build unix

package manifest

import (
	"syscall"
	"testing"
	"time"
)

// processors gives for how long this process has had processors. What else the machine does is no
// part of that time.
func processors(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
