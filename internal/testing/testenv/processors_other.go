//go:build !unix

package testenv

import (
	"testing"
	"time"
)

// ProcessorTime returns a function that returns the time of the clock since, for want of anything
// better.
func ProcessorTime(testing.TB) func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
