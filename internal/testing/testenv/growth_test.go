package testenv

import (
	"testing"
	"time"
)

// TestGrowth measures operations whose time is known.
func TestGrowth(t *testing.T) {
	spend := func(d time.Duration) {
		for elapsed := ProcessorTime(t); elapsed() < d; {
		}
	}
	for _, c := range []struct {
		name    string
		time    func(n int) time.Duration
		refused bool
	}{
		{"linear", func(n int) time.Duration { return time.Duration(n) * time.Millisecond }, false},
		{"square", func(n int) time.Duration { return time.Duration(n*n) * time.Millisecond / 8 }, true},
	} {
		e := &ending{TB: t}
		Growth(e, 8, func(n int) func() { return func() { spend(c.time(n)) } })
		if got := len(e.said) > 0; got != c.refused {
			t.Errorf("%s: got errors %q, want some: %t", c.name, e.said, c.refused)
		}
	}
}
