package xtables

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/legacytables"
)

// legacyWatch looks at the sizes of tables of the legacy flavour, which reports no changes. It
// notices each change of the number of rules of one of the kernel's own chains, of a table, or of
// their size in bytes. Resyncs find all other changes.
type legacyWatch struct {
	// exist returns the tables of a family that exist: the kernel makes a table that somebody
	// looks at.
	exist map[v1.IPFamily]func() ([]Table, error)
	// sockets are for the families that use the flavour.
	sockets map[v1.IPFamily]*legacytables.Socket

	// mu is held during each own commit.
	mu sync.Mutex
	// seen are the tables after the last own commit, or before everything was read.
	seen    map[legacyTable]legacytables.Info
	foreign bool
}

type legacyTable struct {
	family v1.IPFamily
	table  Table
}

// lookInterval is the time between two looks. A look takes some microseconds, however many rules
// there are.
const lookInterval = time.Second

// newLegacyWatch makes a watch in the network namespace of the calling thread.
func newLegacyWatch(exist map[v1.IPFamily]func() ([]Table, error)) (*legacyWatch, error) {
	w := &legacyWatch{exist: exist, sockets: map[v1.IPFamily]*legacytables.Socket{}}
	for f := range exist {
		s, err := legacytables.Open(f)
		if err != nil {
			_ = w.Close() // nothing was written
			return nil, err
		}
		w.sockets[f] = s
	}
	return w, nil
}

// Close implements [io.Closer].
func (w *legacyWatch) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sockets {
		_ = s.Close() // nothing was written
	}
	w.sockets, w.seen = nil, nil
	return nil
}

func (w *legacyWatch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen, w.foreign = w.look(), false
}

func (w *legacyWatch) commit(_ context.Context, _, _ int, run func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.compare()
	err := run()
	w.seen = w.look()
	return err
}

// compare looks at the tables that were seen. It requires w.mu.
func (w *legacyWatch) compare() {
	for t, seen := range w.seen {
		now, err := w.sockets[t.family].Info(t.table.String())
		w.foreign = w.foreign || err != nil || now != seen
	}
}

// drifted is always true: only reading all rules shows whether each is as it was.
func (*legacyWatch) drifted() bool { return true }

func (w *legacyWatch) wait(ctx context.Context) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		w.mu.Lock()
		w.compare()
		foreign, closed := w.foreign, w.sockets == nil
		w.mu.Unlock()
		switch {
		case closed:
			return errClosed
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

// look returns the tables that can be read. It requires w.mu.
func (w *legacyWatch) look() map[legacyTable]legacytables.Info {
	all := map[legacyTable]legacytables.Info{}
	for family, s := range w.sockets {
		tables, err := w.exist[family]()
		if err != nil {
			continue
		}
		for _, t := range tables {
			if info, err := s.Info(t.String()); err == nil {
				all[legacyTable{family, t}] = info
			}
		}
	}
	return all
}
