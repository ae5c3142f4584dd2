package testenv

import (
	"os"
	"testing"
)

// OpenFiles returns the number of open files of the process.
func OpenFiles(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	NoError(t, err)
	return len(all)
}
