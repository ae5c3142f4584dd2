package userspace

import (
	"github.com/vipkit/vipkit/internal/nodecheck"
	"github.com/vipkit/vipkit/proxy"
)

// CheckNode implements [backends.NodeChecker]. All connections end at sockets of the
// backend, so that settings of forwarding and of bridges do not matter.
func (b *Backend) CheckNode(s proxy.Snapshot) []*proxy.Problem {
	if b.options.Capture != TPROXY {
		return nil
	}
	return nodecheck.Capture(s)
}
