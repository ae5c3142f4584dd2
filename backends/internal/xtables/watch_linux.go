package xtables

import (
	"context"
	"fmt"
	"sync"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// watcher notices changes that other programs make to the tables of a family.
type watcher interface {
	// begin is called before everything is read: later changes count.
	begin()
	// commit runs a program that makes a number of commits. The changes of the program do not count.
	commit(ctx context.Context, commits int, run func() error) error
	// drifted reports whether there may have been changes since begin.
	drifted() bool
	// wait returns nil when there has been one.
	wait(ctx context.Context) error
}

// watch notices commits of other programs to tables of nf_tables. It does not listen during an own
// program, but compares the number of commits.
type watch struct {
	monitor *nfnetlink.Monitor
	mu      sync.Mutex
}

// newWatch makes a watch of tables, which begins to watch at begin.
func newWatch(conn *nfnetlink.Conn, n Names) (*watch, error) {
	var names []string
	for _, t := range n.tables() {
		names = append(names, t.String())
	}
	monitor, err := conn.Monitor(names...)
	return &watch{monitor: monitor}, err
}

// Close ends a wait that is running.
func (w *watch) Close() error { return w.monitor.Close() }

func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.monitor.Begin() // a monitor that does not listen has noticed something
}

func (w *watch) commit(ctx context.Context, commits int, run func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	ran := false
	err := w.monitor.Apart(ctx, func() (int, error) { ran = true; return commits, run() })
	if err != nil && !ran {
		return fmt.Errorf("iptables: %w: %w", backends.ErrUnavailable, err)
	}
	return err
}

func (w *watch) drifted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.monitor.Noticed()
}

func (w *watch) wait(ctx context.Context) error { return w.monitor.Wait(ctx) }
