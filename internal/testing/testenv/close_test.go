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
