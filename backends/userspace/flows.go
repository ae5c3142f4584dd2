package userspace

// NeedsFlows implements [backends.FlowNeeder]: with [Redirect] connection tracking remembers
// which flows are redirected, with [TPROXY] those from bridges.
func (b *Backend) NeedsFlows() bool { return b.tracked }
