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
	w.begin()
	testenv.NoError(t, w.Close())
	ran := false
	if err := w.commit(t.Context(), 1, func() error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("commit: got error %v, ran %t, want none, true", err, ran)
	}
	if err := w.wait(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("waiting: got error %v, want one that is os.ErrClosed", err)
	}
}
