package proxy

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestAchieved(t *testing.T) {
	old := NewSnapshot(nil, &ServicePort{Name: portName("a")}, &ServicePort{Name: portName("b"), HealthCheckNodePort: 1})
	next := NewSnapshot(nil, &ServicePort{Name: portName("b"), HealthCheckNodePort: 2}, &ServicePort{Name: portName("c")})
	broken := errors.New("broken")
	some := PortErrors{portName("b"): broken, portName("c"): broken}
	for name, tc := range map[string]struct {
		err  error
		want Snapshot
	}{
		"no error":                {nil, next},
		"any other error":         {broken, old},
		"lost":                    {fmt.Errorf("%w: %w", ErrDataplaneLost, broken), Snapshot{}},
		"some ports":              {some, NewSnapshot(nil, &ServicePort{Name: portName("b"), HealthCheckNodePort: 1})},
		"some ports, and wrapped": {fmt.Errorf("nftables: %w", some), NewSnapshot(nil, &ServicePort{Name: portName("b"), HealthCheckNodePort: 1})},
		"some ports, and lost":    {fmt.Errorf("%w: %w", ErrDataplaneLost, some), Snapshot{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := old.Achieved(next, tc.err)
			_, isOld := tc.want.Get(portName("a"))
			isPartial := tc.err != nil && !tc.want.IsZero() && !isOld
			if got := refused(tc.err); (len(got) == len(some)) != isPartial {
				t.Errorf("refused: got %v, want the ports of the error: %t", got, isPartial)
			}
			if changes := slices.Collect(got.Changes(tc.want)); got.IsZero() != tc.want.IsZero() || len(changes) > 0 {
				t.Errorf("snapshot: got one that is zero: %t, with unexpected ports: %v", got.IsZero(), changes)
			}
		})
	}
}

func TestPortErrorsAsProblems(t *testing.T) {
	var got []string
	for _, p := range (PortErrors{portName("b"): io.EOF, portName("a"): io.ErrNoProgress}).Problems() {
		got = append(got, p.Error())
		if !errors.Is(p, io.EOF) && !errors.Is(p, io.ErrNoProgress) {
			t.Errorf("%v: got no cause, want that of the port", p)
		}
	}
	want := []string{
		"Service ns/a: spec.ports: ns/a:http/TCP/IPv4: " + io.ErrNoProgress.Error(),
		"Service ns/b: spec.ports: ns/b:http/TCP/IPv4: EOF",
	}
	testenv.Same(t, want, got, "problems")
}
