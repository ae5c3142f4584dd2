package xtables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// watch notices commits of other programs to tables of iptables in nf_tables. Each commit by any
// program adds one to the generation of the ruleset, and the messages about a commit have its
// generation.
type watch struct {
	conn     *nfnetlink.Conn
	monitor  *nfnetlink.Monitor
	families map[nfnetlink.Family]bool

	// mu is held during each own commit, so that nobody takes its messages for those of others.
	mu sync.Mutex
	// foreign is true if there was a commit of another program, or may have been.
	foreign, closed bool
}

// newWatch makes a watch of tables, which begins to watch at begin.
func newWatch(conn *nfnetlink.Conn, n Names, families map[nfnetlink.Family]bool) (*watch, error) {
	var names []string
	for _, t := range n.tables() {
		names = append(names, t.String())
	}
	monitor, err := conn.Monitor(names...)
	if err != nil {
		return nil, err
	}
	w := &watch{conn: conn, monitor: monitor, families: families, foreign: true}
	if err := monitor.Enlarge(); err != nil {
		return nil, errors.Join(err, monitor.Close())
	}
	return w, nil
}

// Close implements [io.Closer]. It ends a wait that is running.
func (w *watch) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	return w.monitor.Close()
}

func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.foreign = w.monitor.Begin() != nil
}

// bulk is the size of an input from which the kernel would make more messages than it keeps.
const bulk = 64 << 10

func (w *watch) commit(ctx context.Context, tables, size int, run func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if size < bulk {
		return w.listening(ctx, tables, run)
	}
	ran := false
	err := w.monitor.Apart(ctx, func() (int, error) { ran = true; return tables, run() })
	if err != nil && !ran {
		return unwatched(err)
	}
	return err
}

// listening runs a program while messages about its commits arrive.
func (w *watch) listening(ctx context.Context, tables int, run func() error) error {
	w.look(nil)
	before, err := w.conn.Generation(ctx)
	if err != nil {
		return unwatched(err)
	}
	failed := run()
	after, err := w.conn.Generation(context.WithoutCancel(ctx))
	during := map[uint16]bool{}
	w.look(func(generation uint16) bool {
		isDuring := err == nil && generation-uint16(before)-1 < uint16(after-before)
		during[generation] = isDuring
		return isDuring
	})
	if failed != nil {
		tables = 0 // how many it has committed is unknown
	}
	// If the program has made fewer commits, one of them may be another program's.
	w.foreign = w.foreign || len(during) != tables
	return failed
}

// unwatched is the error of a commit that was not made because nobody would watch.
func unwatched(err error) error {
	return fmt.Errorf("iptables: %w: %w", backends.ErrUnavailable, err)
}

// look reads messages. Those of a generation that is own do not count.
func (w *watch) look(isOwn func(generation uint16) bool) {
	err := w.monitor.Read(func(t nfnetlink.Table, generation uint16) {
		if w.families[t.Family] && (isOwn == nil || !isOwn(generation)) {
			w.foreign = true
		}
	})
	w.foreign = w.foreign || err != nil
}

func (w *watch) drifted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.foreign {
		w.look(nil)
	}
	return w.foreign
}

func (w *watch) wait(ctx context.Context) error {
	for !w.drifted() {
		if err := w.monitor.Wait(ctx); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errClosed
	}
	return ctx.Err()
}

// errClosed is the error of a wait on a backend that is closed.
var errClosed = fmt.Errorf("iptables: waiting for changes of rules: %w", os.ErrClosed)
