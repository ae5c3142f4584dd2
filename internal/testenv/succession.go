package testenv

import (
	"io"
	"testing"
)

// Succession is one thing after another, as an agent and the one that takes its place:
// the one before is closed when the next is opened. The zero value has none yet.
type Succession struct{ last io.Closer }

// Next opens the next one, which ends with the test at the latest; it may be closed
// more than once.
func Next[C io.Closer](t testing.TB, s *Succession, open func() (C, error)) C {
	t.Helper()
	if s.last != nil {
		if err := s.last.Close(); err != nil {
			t.Errorf("closing the one before: %v", err)
		}
	}
	next, err := open()
	if err != nil {
		t.Fatal(err)
	}
	CloseAtEnd(t, next)
	s.last = next
	return next
}
