package ipvs

import "github.com/vipkit/vipkit/proxy"

// NeedsFlows implements [backends.FlowNeeder]: IPVS keeps flows, as connection tracking does.
func (*backend) NeedsFlows() bool { return true }

// Found implements [backends.Finder].
func (b *backend) Found() []*proxy.ServicePort { return b.target.found.Take() }
