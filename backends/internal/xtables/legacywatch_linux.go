package xtables

import (
	"context"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/vipkit/vipkit/internal/kernel/legacytables"
)

// legacyWatch looks at the sizes of tables of the legacy flavour, which reports no changes. It
// notices each change of the number of rules of one of the kernel's own chains, of a table, or of
// their size in bytes. Resyncs find all other changes.
type legacyWatch struct {
	// look returns the tables that exist.
	look func() map[Table]legacytables.Info

	// mu is held during each own commit.
	mu sync.Mutex
	// seen are the tables after the last own commit, or before everything was read.
	seen            map[Table]legacytables.Info
	foreign, closed bool
}

// lookInterval is the time between two looks. A look takes 0.1 ms, however many rules there
// are.
const lookInterval = time.Second

// Close ends a wait that is running.
func (w *legacyWatch) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return nil
}

// Begin implements [watcher].
func (w *legacyWatch) Begin() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen, w.foreign = w.look(), false
	return nil
}

// Pause implements [watcher].
func (w *legacyWatch) Pause(_ context.Context, run func() (int, error)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.compare()
	_, err := run()
	w.seen = w.look()
	return err
}

// compare looks at the tables that were seen. It requires w.mu.
func (w *legacyWatch) compare() { w.foreign = w.foreign || !maps.Equal(w.seen, w.look()) }

// Noticed is always true: only reading all rules shows whether each is as it was.
func (*legacyWatch) Noticed() bool { return true }

// Wait implements [watcher].
func (w *legacyWatch) Wait(ctx context.Context) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		w.mu.Lock()
		w.compare()
		foreign, closed := w.foreign, w.closed
		w.mu.Unlock()
		switch {
		case closed:
			return fmt.Errorf("iptables: waiting for changes of rules: %w", os.ErrClosed)
		case foreign:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
