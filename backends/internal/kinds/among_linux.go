package kinds

import (
	"context"
	"errors"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// among is a backend beside backends of other kinds.
type among struct {
	proxy.Backend
	instance *Instance
}

// Among opens an instance, as [Open] does, and returns a backend that is it: after each full Apply it
// succeeds ended instances of other kinds, and their end is drift. b must have CheckNode. If Among
// fails, it closes b.
func Among(b proxy.Backend, identity backends.Identity, own ...Kind) (proxy.Backend, error) {
	i, err := Open(identity, own...)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return among{b, i}, nil
}

// Apply implements [proxy.Backend].
func (a among) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	return a.instance.Succeed(ctx, old, a.Backend.Apply(ctx, old, new))
}

// Abilities implements [proxy.Backend].
func (a among) Abilities() proxy.Abilities {
	able := a.Backend.Abilities()
	if drifted := able.Drifted; drifted != nil {
		able.Drifted = func(ctx context.Context) bool { return a.instance.Ended() || drifted(ctx) }
	}
	check := able.CheckNode
	able.CheckNode = func(s proxy.Snapshot) []*proxy.Problem { return append(check(s), a.instance.CheckNode(s)...) }
	return able
}

// Close implements [proxy.Backend].
func (a among) Close() error { return errors.Join(a.instance.Close(), a.Backend.Close()) }
