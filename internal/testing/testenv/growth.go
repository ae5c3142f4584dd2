package testenv

import (
	"testing"
	"time"
)

// Growth checks that the processor time of an operation does not grow with the square of n.
// Eight times as much takes eight times as long if the time is linear, and 64 times if it is a
// square. The function prepare returns the operation for n, which runs up to three times.
func Growth(t testing.TB, n int, prepare func(n int) func()) {
	t.Helper()
	least := func(n int, enough time.Duration) time.Duration {
		run, least := prepare(n), time.Duration(0)
		for i := range 3 {
			elapsed := ProcessorTime(t)
			run()
			if took := elapsed(); i == 0 || took < least {
				least = took
			}
			if least <= enough {
				break
			}
		}
		return least
	}
	few := least(n, 0)
	limit := 30 * max(few, 5*time.Millisecond) // Some clocks advance only every few milliseconds.
	many := least(8*n, limit)
	t.Logf("%d take %v, %d take %v", n, few, 8*n, many)
	if many > limit {
		t.Errorf("%d take %v and eight times as many %v, want at most 30 times as long", n, few, many)
	}
}
