package testenv

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// closable counts how often it was closed.
type closable struct {
	closed int
	err    error
}

func (c *closable) Close() error {
	c.closed++
	return c.err
}

// ending is a test that a call of end ends, and that records its errors.
type ending struct {
	testing.TB
	said []string
	ends []func()
}

func (e *ending) Helper()                   {}
func (e *ending) Cleanup(f func())          { e.ends = append(e.ends, f) }
func (e *ending) Errorf(f string, a ...any) { e.said = append(e.said, fmt.Sprintf(f, a...)) }

func (e *ending) end() {
	for _, f := range e.ends {
		f()
	}
}

func TestCloseAtEnd(t *testing.T) {
	for _, c := range []struct {
		err  error
		want []string
	}{{nil, nil}, {errors.New("no"), []string{"closing *testenv.closable: no"}}} {
		e, one := &ending{TB: t}, &closable{err: c.err}
		CloseAtEnd(e, one)
		if one.closed != 0 {
			t.Error("got it closed before the end of the test")
		}
		e.end()
		if diff := cmp.Diff(c.want, e.said); diff != "" || one.closed != 1 {
			t.Errorf("got it closed %d times, want once; errors (-want +got):\n%s", one.closed, diff)
		}
	}
}

func TestNext(t *testing.T) {
	var s Succession
	e := &ending{TB: t}
	next := func(err error) *closable {
		return Next(e, &s, func() (*closable, error) { return &closable{err: err}, nil })
	}
	one := next(nil)
	two := next(errors.New("no"))
	if one.closed != 1 || two.closed != 0 {
		t.Errorf("times closed: got %d for the first and %d for the second, want 1 and 0", one.closed, two.closed)
	}
	three := next(nil)
	e.end()
	if two.closed != 2 || three.closed != 1 {
		t.Errorf("times closed at the end: got %d for the second and %d for the third, want 2 and 1", two.closed, three.closed)
	}
	want := []string{"closing the previous *testenv.closable: no", "closing *testenv.closable: no"}
	if diff := cmp.Diff(want, e.said); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}
