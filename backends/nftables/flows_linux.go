package nftables

// NeedsFlows implements [backends.FlowNeeder]: connection tracking remembers translations.
func (*kernel) NeedsFlows() bool { return true }
