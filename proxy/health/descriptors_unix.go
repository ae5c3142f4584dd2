//go:build unix

package health

import (
	"math"
	"syscall"
)

// descriptors returns the limit of file descriptors of the process. At its start, Go
// has raised it to the hard limit.
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32 // There is no such limit.
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) //nolint:unconvert // not on every system
}
