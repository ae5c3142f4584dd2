package testenv

import (
	"io"
	"syscall"
	"testing"
)

// Close closes c while no program starts: until it runs, a new process has the files of this one,
// so that addresses of closed sockets are still in use. A program that has just started may have
// them for another moment: tests that use the addresses at once run alone, or try again.
func Close(c io.Closer) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return c.Close()
}

// CloseAtEnd closes c when the test ends. If that fails, the test fails.
func CloseAtEnd(t testing.TB, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing %T: %v", c, err)
		}
	})
}
