//go:build ipvs

package ipvs

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// After a Cleanup, also after one that failed, the Apply of a change programs everything.
func TestChangeAfterCleanup(t *testing.T) {
	nothing := func() {}
	for name, tc := range map[string]struct {
		options Options
		prepare func(testing.TB) (end func())
		want    error
	}{
		"success":  {Options{}, func(testing.TB) func() { return nothing }, nil},
		"settings": {Options{}, func(t testing.TB) func() { return readOnly(t) }, unix.EROFS},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDrainStage(t, tc.options, nil)
			d.Apply(t, snapshotOf(d.both, localPort(3)))
			end := tc.prepare(t)
			if err := d.backend(t).Cleanup(t.Context()); !errors.Is(err, tc.want) {
				t.Errorf("Cleanup: got error %v, want %v", err, tc.want)
			}
			end()
			if errs := d.apply(t, snapshotOf(d.both, localPort(3), d.port(1, 0))); len(errs) > 0 {
				t.Errorf("a change after Cleanup: got errors %v, want none", errs)
			}
			before := d.Operations(t)
			d.Apply(t, snapshotOf(d.both, localPort(3), d.port(1, 1)))
			if got := d.Operations(t) - before; got != 2 {
				t.Errorf("operations of the next change: got %d, want 2", got)
			}
			d.adopts(t, d.Applied)
		})
	}
}
