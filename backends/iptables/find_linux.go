package iptables

import (
	"context"
	"errors"
	"fmt"

	"github.com/vipkit/vipkit/backends"
)

// sighting is what was found of an identity.
type sighting struct {
	// found is what is in effect, and dead are jumps that no packet comes to.
	found, dead saved
	// blind says that iptables cannot print what there is: of our chains only the names
	// are known.
	blind bool
	picture
}

// find reads what there is of an identity, and mends what cannot be compared as text.
func (k *kernel) find(ctx context.Context) (s sighting, err error) {
	if k.native != nil {
		var committed bool
		s.picture, committed, err = k.native.mend(ctx)
		if committed {
			k.watch.committed(ctx, 1, err)
		}
		if err != nil {
			return s, fmt.Errorf("iptables: nf_tables: %w", err)
		}
	}
	s.found, s.dead, err = k.programs.find(ctx, k.renderer.names, s.hidden())
	switch {
	case k.native != nil && isUnprintable(err):
		s.found, s.blind = s.unread(saved{}, true), true
		return s, nil
	case err == nil:
		s.found = s.unread(s.found, false)
	}
	return s, err
}

// isUnprintable reports whether what there is cannot be printed: because of rules of
// others, that is, and not for want of anything.
func isUnprintable(err error) bool {
	stop, stopped := errors.AsType[*stopError](err)
	return errors.Is(err, errIncompatible) || stopped && errors.Is(stop.kind, backends.ErrConflict)
}
