package iptables

import (
	"context"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// watch notices whether others have changed nf_tables, where the rules of one
// flavour are: each commit, whoever makes it, moves the generation of all rules
// by one.
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

// committed takes note of commits of our own. After an error nobody knows how many
// there were; nor where the generation is another one at once: then others have been
// there too, or a program has made fewer commits than it was told to, which one of others
// would hide later.
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
