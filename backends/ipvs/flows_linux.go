package ipvs

// NeedsFlows implements [backends.FlowNeeder]: IPVS keeps flows, as connection tracking does.
func (*backend) NeedsFlows() bool { return true }
