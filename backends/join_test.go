package backends_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// The error of several parts means the same as that of one, and wraps all of theirs.
func TestJoinErrors(t *testing.T) {
	broken, lost := errors.New("broken"), fmt.Errorf("%w: gone", proxy.ErrDataplaneLost)
	a, b := proxy.PortErrors{portName(1): broken}, proxy.PortErrors{portName(2): broken}
	for name, tc := range map[string]struct {
		errs             []error
		lost, lostAnyhow bool // from a known dataplane, and from an unknown one
		ports            int  // that are named; 0 if the error holds no PortErrors
	}{
		"all succeed":               {errs: []error{nil, nil}},
		"ports of one":              {errs: []error{nil, a}, ports: 1},
		"ports of both":             {errs: []error{a, b}, ports: 2},
		"all fail":                  {errs: []error{broken, broken}},
		"one fails":                 {errs: []error{broken, nil}, lost: true},
		"one fails, ports of one":   {errs: []error{a, broken}, lost: true},
		"one lost":                  {errs: []error{lost, nil}, lost: true, lostAnyhow: true},
		"one lost, ports of one":    {errs: []error{lost, a}, lost: true, lostAnyhow: true},
		"one lost, the other fails": {errs: []error{lost, broken}, lost: true, lostAnyhow: true},
		"one lost where ports fail": {errs: []error{fmt.Errorf("%w: %w", lost, a), nil}, lost: true, lostAnyhow: true, ports: 1},
		"ports fail, one is lost":   {errs: []error{b, fmt.Errorf("%w: %w", lost, a)}, lost: true, lostAnyhow: true, ports: 1},
	} {
		for known, wantLost := range map[bool]bool{true: tc.lost, false: tc.lostAnyhow} {
			var old proxy.Snapshot
			if known {
				old = proxy.NewSnapshot(nil)
			}
			err := backends.JoinErrors(old, tc.errs...)
			if got := errors.Is(err, proxy.ErrDataplaneLost); got != wantLost {
				t.Errorf("%s, known %t: got error %v, want one that wraps ErrDataplaneLost: %t", name, known, err, wantLost)
			}
			if got, _ := errors.AsType[proxy.PortErrors](err); len(got) != tc.ports {
				t.Errorf("%s, known %t: got error %v, want one that names %d ports", name, known, err, tc.ports)
			}
			if want := errors.Join(tc.errs...); (err == nil) != (want == nil) {
				t.Errorf("%s, known %t: got error %v, want %v", name, known, err, want)
			}
			if err != nil && strings.Count(err.Error(), proxy.ErrDataplaneLost.Error()) > 1 {
				t.Errorf("%s, known %t: error %v says twice that the dataplane is lost", name, known, err)
			}
			for _, part := range tc.errs {
				if part != nil && !strings.Contains(err.Error(), strings.TrimPrefix(part.Error(), "1 service port not programmed: ")) {
					t.Errorf("%s, known %t: error %v does not say %v", name, known, err, part)
				}
				if _, some := errors.AsType[proxy.PortErrors](part); part != nil && !some && !errors.Is(err, part) {
					t.Errorf("%s, known %t: got error %v, want one that wraps %v", name, known, err, part)
				}
			}
		}
	}
}
