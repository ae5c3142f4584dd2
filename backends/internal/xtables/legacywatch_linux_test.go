package xtables

import (
	"errors"
	"os"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/legacytables"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Once a watch that has seen tables is closed, a wait fails, and a commit runs its program.
func TestClosedLegacyWatch(t *testing.T) {
	t.Parallel()
	w := &legacyWatch{look: func() map[Table]legacytables.Info { return map[Table]legacytables.Info{Filter: {}} }}
	testenv.NoError(t, w.Begin())
	testenv.NoError(t, w.Close())
	ran := false
	if err := w.Pause(t.Context(), func() (int, error) { ran = true; return 1, nil }); err != nil || !ran {
		t.Errorf("Pause: got error %v, ran %t, want none, true", err, ran)
	}
	if err := w.Wait(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("waiting: got error %v, want one that is os.ErrClosed", err)
	}
}
