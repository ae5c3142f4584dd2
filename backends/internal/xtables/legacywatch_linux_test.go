package xtables

import (
	"errors"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Once a watch that has seen tables is closed, a wait fails, and a commit runs its program.
func TestClosedLegacyWatch(t *testing.T) {
	t.Parallel()
	var w *legacyWatch
	err := netnstest.NewNS(t).Do(func() (err error) {
		w, err = newLegacyWatch(map[v1.IPFamily]func() ([]Table, error){
			v1.IPv4Protocol: func() ([]Table, error) { return []Table{Filter}, nil },
		})
		return err
	})
	testenv.NoError(t, err)
	if w.begin(); len(w.seen) != 1 {
		t.Fatalf("seen tables: got %v, want 1", w.seen)
	}
	testenv.NoError(t, w.Close())
	ran := false
	if err := w.commit(t.Context(), 1, 0, func() error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("commit: got error %v, ran %t, want none, true", err, ran)
	}
	if err := w.wait(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("waiting: got error %v, want one that is os.ErrClosed", err)
	}
}
