//go:build ipvs

package ipvs

import (
	"context"
	"errors"
	"testing"
)

// After a Cleanup, also after one that failed, the Apply of a change programs everything.
func TestChangeAfterCleanup(t *testing.T) {
	for name, want := range map[string]error{"success": nil, "failure": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			d := newDrainStage(t, Options{}, nil)
			d.Apply(t, snapshotOf(d.both, localPort(3)))
			ctx, cancel := context.WithCancel(t.Context())
			if want != nil {
				cancel()
			}
			if err := d.backend(t).Cleanup(ctx); !errors.Is(err, want) {
				t.Errorf("Cleanup: got error %v, want %v", err, want)
			}
			cancel()
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
