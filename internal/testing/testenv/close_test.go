package testenv

import (
	"errors"
	"testing"
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

func TestCloseAtEnd(t *testing.T) {
	for _, c := range []struct {
		err  error
		want []string
	}{{nil, nil}, {errors.New("no"), []string{"closing *testenv.closable: no"}}} {
		one := &closable{err: c.err}
		said := Record(t, func(r testing.TB) {
			CloseAtEnd(r, one)
			Same(t, 0, one.closed, "times closed before the end of the test")
		})
		Same(t, c.want, said, "errors")
		Same(t, 1, one.closed, "times closed")
	}
}

func TestNext(t *testing.T) {
	var all []*closable
	said := Record(t, func(r testing.TB) {
		var s Succession
		for _, err := range []error{nil, errors.New("no"), nil} {
			all = append(all, Next(r, &s, func() (*closable, error) { return &closable{err: err}, nil }))
		}
		Same(t, []int{1, 1, 0}, closed(all), "times closed")
	})
	Same(t, []int{2, 2, 1}, closed(all), "times closed at the end")
	Same(t, []string{"closing the previous *testenv.closable: no", "closing *testenv.closable: no"}, said, "errors")
}

func closed(all []*closable) (times []int) {
	for _, c := range all {
		times = append(times, c.closed)
	}
	return times
}
