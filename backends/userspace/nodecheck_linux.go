package userspace

import (
	"github.com/vipkit/vipkit/internal/nodecheck"
	"github.com/vipkit/vipkit/proxy"
)

// CheckNode implements [backends.NodeChecker]. Its sockets are endpoints of all connections,
// so that forwarding and bridges are no matter.
func (b *Backend) CheckNode(s proxy.Snapshot) []*proxy.Problem {
	if b.options.Capture != TPROXY {
		return nil
	}
	return nodecheck.Capture(s)
}
