//go:build unix

package health

import (
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// withFewDescriptors sets the limit of file descriptors to fewDescriptors until the test ends.
func withFewDescriptors(t *testing.T) {
	t.Helper()
	limitDescriptors(t, func(l *syscall.Rlimit) { l.Cur = fewDescriptors })
}

// withManyDescriptors raises the limit to manyDescriptors, if it is lower, until the test ends.
func withManyDescriptors(t *testing.T) {
	t.Helper()
	if descriptors() < manyDescriptors {
		limitDescriptors(t, func(l *syscall.Rlimit) { l.Cur, l.Max = manyDescriptors, max(l.Max, manyDescriptors) })
	}
}

func limitDescriptors(t *testing.T, change func(*syscall.Rlimit)) {
	t.Helper()
	var was syscall.Rlimit
	testenv.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	now := was
	change(&now)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		testenv.CannotRun(t, "RLIMIT_NOFILE cannot be set: "+err.Error())
	}
	t.Cleanup(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
}
