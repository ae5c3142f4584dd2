package xtables

import (
	"context"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// watch notices commits of other programs to nf_tables: each commit by any program adds one
// to the generation of the ruleset. A nil watch always reports drift.
type watch struct {
	conn *nfnetlink.Conn
	// expected is the generation after the own commits alone.
	expected uint32
	known    bool
}

// begin reads the generation before everything is listed.
func (w *watch) begin(ctx context.Context) {
	if w == nil {
		return
	}
	generation, err := w.conn.Generation(ctx)
	w.expected, w.known = generation, err == nil
}

// committed counts n own commits. After an error, the number of commits and so the expected
// generation is unknown. It is also unknown if the generation is not the expected one now:
// another program has committed, or the own program has made fewer commits than expected, so
// that a later commit of another program would not be noticed.
func (w *watch) committed(ctx context.Context, n int, err error) {
	if w == nil {
		return
	}
	w.expected += uint32(n)
	w.known = err == nil && !w.drifted(ctx)
}

// drifted reports whether other programs may have committed.
func (w *watch) drifted(ctx context.Context) bool {
	if w == nil || !w.known {
		return true
	}
	generation, err := w.conn.Generation(ctx)
	return err != nil || generation != w.expected
}
