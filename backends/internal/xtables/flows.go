package xtables

// NeedsFlows implements [backends.FlowNeeder]: connection tracking remembers translations.
func (*Backend) NeedsFlows() bool { return true }
