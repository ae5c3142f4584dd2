package testenv

import (
	"io"
	"testing"
)

// CloseAtEnd closes something when the test ends, which fails if that fails.
func CloseAtEnd(t testing.TB, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing %T: %v", c, err)
		}
	})
}
