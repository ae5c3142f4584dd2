package ipvs

import (
	"context"
	"errors"
)

// PrepareNode does what the first Apply of the backend of these options does before it writes rules:
// it makes the device and the sets, and writes the kernel's settings. It is for agents that run
// with a read-only /proc/sys, as in a container: a process with more privileges calls PrepareNode
// before the agent starts. Cleanup of any process restores the settings. If the node lacks a part
// of IPVS, PrepareNode fails with [proxy.ErrUnsupported].
func PrepareNode(ctx context.Context, o Options) (err error) {
	b, err := newBackend(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	return b.prepare(ctx)
}
