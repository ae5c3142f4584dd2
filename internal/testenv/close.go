package testenv

import (
	"io"
	"testing"
)

// CloseAtEnd closes c when the test ends. If that fails, the test fails.
func CloseAtEnd(t testing.TB, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing %T: %v", c, err)
		}
	})
}
