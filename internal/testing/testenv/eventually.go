package testenv

import (
	"testing"
	"time"
)

// Eventually repeats a check until it returns no error. When patience is over, it ends the test with the last one.
func Eventually(t testing.TB, patience time.Duration, what string, check func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %v until %s: %v", patience, what, err)
		}
	}
}
