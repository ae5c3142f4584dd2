package userspace

import (
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// NeedsFlows implements [backends.FlowNeeder]: with [Redirect] connection tracking remembers
// which flows are redirected, with [TPROXY] those from bridges.
func (b *Backend) NeedsFlows() bool { return b.tracked }

// Found implements [backends.Finder].
func (b *Backend) Found() []*proxy.ServicePort {
	if f, can := b.inner.(backends.Finder); can {
		return f.Found()
	}
	return nil
}
