package testenv

import (
	"io"
	"testing"
)

// Succession holds the latest of several closers, such as an agent and its
// replacement: [Next] closes the previous one. The zero value holds none.
type Succession struct{ last io.Closer }

// Next closes the previous one, and opens the next one, which is closed when the test ends at
// the latest. Close must allow to be called more than once.
func Next[C io.Closer](t testing.TB, s *Succession, open func() (C, error)) C {
	t.Helper()
	if s.last != nil {
		if err := Close(s.last); err != nil {
			t.Errorf("closing the previous %T: %v", s.last, err)
		}
	}
	next, err := open()
	NoError(t, err)
	CloseAtEnd(t, next)
	s.last = next
	return next
}
