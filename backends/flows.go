package backends

// FlowNeeder is an optional ability of a [Target] and of any [proxy.Backend]. A [proxy.Runner]
// without Flows logs at its start that they are missing.
type FlowNeeder interface {
	// NeedsFlows reports whether the kernel decides once for each flow, so that a UDP client
	// that keeps its port follows a change of Services only if Flows of the Runner removes
	// its stale flow. It must be constant.
	NeedsFlows() bool
}

// NeedsFlows implements [FlowNeeder] by the target, if it is one.
func (r *reconciler[K, V]) NeedsFlows() bool {
	n, can := r.target.(FlowNeeder)
	return can && n.NeedsFlows()
}
