//go:build !unix

package manifest

import (
	"testing"
	"time"
)

// processors returns the time of the clock, for want of anything better.
func processors(testing.TB) time.Duration { return time.Duration(time.Now().UnixNano()) }
