package backends

import (
	"context"
	"errors"
	"maps"

	"github.com/vipkit/vipkit/proxy"
)

// Separator is an optional ability of a [Target] whose kernel has no transactions, and takes long
// for each operation: a commit of many service ports that fails would have to be reverted in full.
type Separator interface {
	// Separate reports whether each service port gets a commit of its own. Ports between which
	// an object moves share one.
	Separate() bool
}

// trySeparately is try with a commit for each change.
func (r *reconciler[K, V]) trySeparately(ctx context.Context, changes []change) error {
	if len(changes) < 2 || r.known && r.planner.plan(r, changes).moved {
		return r.try(ctx, changes)
	}
	failed := proxy.PortErrors{}
	for i := range changes {
		err := r.try(ctx, changes[i:i+1])
		if some, ok := errors.AsType[proxy.PortErrors](err); ok && !errors.Is(err, proxy.ErrDataplaneLost) {
			maps.Copy(failed, some)
		} else if err != nil && i > 0 {
			return JoinErrors(r.known, nil, err)
		} else if err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}
