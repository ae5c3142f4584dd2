package nftables

import (
	"github.com/vipkit/vipkit/internal/nodecheck"
	"github.com/vipkit/vipkit/proxy"
)

// CheckNode implements [backends.NodeChecker].
func (*kernel) CheckNode(s proxy.Snapshot) []*proxy.Problem { return nodecheck.Translation(s) }
