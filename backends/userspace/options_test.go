package userspace

import (
	"context"
	"errors"
	"net"
	"testing"
)

// Every picker reaches the engine, on every system; the default is round robin.
func TestPickersReachTheEngine(t *testing.T) {
	t.Parallel()
	dial := func(context.Context, Dial) (net.Conn, error) { return nil, errors.ErrUnsupported }
	for _, want := range []Picker{RoundRobin, Random, LeastConnections} {
		o := Options{Picker: want, Hooks: Hooks{Dial: dial}}
		if got := o.engineConfig(nil).Picker; got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if (Options{}).Picker != RoundRobin {
		t.Error("the zero Options have another picker than round robin")
	}
}
