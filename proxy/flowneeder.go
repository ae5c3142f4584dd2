package proxy

// flowNeeder is an optional ability of a [Backend]; backends.FlowNeeder has its contract.
type flowNeeder interface{ NeedsFlows() bool }

// needsFlows reports whether the Backend needs Flows, and has none.
func (r *Runner) needsFlows() bool {
	n, can := r.Backend.(flowNeeder)
	return can && r.Flows == nil && n.NeedsFlows()
}
