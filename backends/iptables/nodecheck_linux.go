package iptables

import (
	"github.com/vipkit/vipkit/internal/nodecheck"
	"github.com/vipkit/vipkit/proxy"
)

// CheckNode implements [backends.NodeChecker].
func (*backend) CheckNode(s proxy.Snapshot) []*proxy.Problem { return nodecheck.Translation(s) }
