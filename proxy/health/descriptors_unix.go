//go:build unix

package health

import (
	"math"
	"syscall"
)

// descriptors says how many file descriptors the process may have. At its start, Go
// has raised that to what the process may have at most.
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32 // There is no such limit.
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) //nolint:unconvert // not on every system
}
