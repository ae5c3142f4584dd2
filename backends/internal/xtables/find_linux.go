package xtables

import (
	"context"
	"errors"
	"fmt"

	"github.com/vipkit/vipkit/backends"
)

// existing are the chains and rules of an identity in the tables of one family.
type existing struct {
	// found are those in effect, and unreachable the jumps that no packet reaches.
	found, unreachable saved
	// unreadable is true if iptables cannot print the tables: of the identity's chains,
	// only the names are known.
	unreadable bool
	ruleset
}

// find reads the chains and rules of the identity. Before that, it repairs what iptables could
// not use or print.
func (k *kernel) find(ctx context.Context) (s existing, err error) {
	if k.native != nil {
		var repairs uint64
		s.ruleset, repairs, err = k.native.repair(ctx)
		if err != nil {
			return s, fmt.Errorf("iptables: nf_tables: %w", err)
		}
		k.ops.Add(repairs)
	}
	s.found, s.unreachable, err = k.programs.find(ctx, k.names, s.hidden())
	if k.native != nil && isUnreadable(err) {
		s.found, s.unreadable = s.unprinted(), true
		return s, nil
	}
	return s, err
}

// isUnreadable reports whether iptables cannot print tables because of foreign rules.
func isUnreadable(err error) bool {
	stop, stopped := errors.AsType[*stopError](err)
	return errors.Is(err, errIncompatible) || stopped && errors.Is(stop.kind, backends.ErrConflict)
}
