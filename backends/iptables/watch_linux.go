package iptables

import (
	"context"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// watch notices whether others have committed to nf_tables, which hold the rules of flavour
// nft: each commit by any program adds one to the generation of the ruleset.
type watch struct {
	conn *nfnetlink.Conn
	// expected is the generation if nobody else committed anything.
	expected uint32
	known    bool
}

// begin takes note of the generation before the rules are looked at.
func (w *watch) begin(ctx context.Context) {
	if w == nil {
		return
	}
	generation, err := w.conn.Generation(ctx)
	w.expected, w.known = generation, err == nil
}

// committed counts n commits of our own. The generation is unknown after an error, which
// does not tell how many were made; and if it is not the expected one right away: then
// others have committed, too, or the program has made fewer commits than it was told to,
// so that a later commit of others would go unnoticed.
func (w *watch) committed(ctx context.Context, n int, err error) {
	if w == nil {
		return
	}
	w.expected += uint32(n)
	w.known = err == nil && !w.drifted(ctx)
}

// drifted reports whether others may have changed something.
func (w *watch) drifted(ctx context.Context) bool {
	if w == nil || !w.known {
		return true
	}
	generation, err := w.conn.Generation(ctx)
	return err != nil || generation != w.expected
}
