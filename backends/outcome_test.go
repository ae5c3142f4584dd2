package backends_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A fault at any operation of any change leaves each object as it was or as it should be, and all service
// ports that the error does not name served. Once nothing fails any more, everything is as it should be.
func TestFaultAtEveryOp(t *testing.T) { eachKind(t, checkFaultAtEveryOp) }

func checkFaultAtEveryOp(t *testing.T, d *driver) {
	r := testenv.Random(t)
	h := newHistory(r)
	faults, lost := 0, 0
	for step := range 1500 {
		h.step()
		want := h.snapshot()
		if r.IntN(100) == 0 {
			d.restart()
		}
		before, at := maps.Clone(d.kernel.objects), r.IntN(25)
		d.kernel.refuse = func(op fakeOp) error {
			if at--; at == -1 || at < 0 && r.IntN(10) == 0 {
				return fmt.Errorf("%w: %v %v", errFault, op.Kind, op.Key)
			}
			return nil
		}
		from := d.applied
		err := d.apply(t.Context(), want)
		d.kernel.refuse = nil
		if err != nil && (errors.Is(err, proxy.ErrDataplaneLost) || len(failedNames(err)) == 0) {
			lost++
		} else {
			faults += len(failedNames(err))
			d.kernelServes(t, from, want, before, err, fmt.Sprintf("step %d", step))
		}
		if r.IntN(3) == 0 { // else the next change meets what is pending
			d.converge(t, want, step)
		}
	}
	if faults < 100 || lost > 500 {
		t.Errorf("got %d failed changes of ports and %d of everything, want at least 100 and at most 500", faults, lost)
	}
}
