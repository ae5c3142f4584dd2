package userspace

import (
	"github.com/vipkit/vipkit/internal/nodecheck"
	"github.com/vipkit/vipkit/proxy"
)

// checkSystem returns the settings of the node that matter to the captures of Linux. Those of
// forwarding and of bridges do not, since all connections end at sockets of the backend.
func (b *Backend) checkSystem(s proxy.Snapshot) []*proxy.Problem {
	if l, shared := b.listeners.(*sharedListeners); !shared || l.config.Node != nil { // the capture is not TPROXY
		return b.instance.CheckNode(s)
	}
	return append(nodecheck.Capture(s), b.instance.CheckNode(s)...)
}
