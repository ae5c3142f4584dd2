package proxy

// flowNeeder is an optional ability of a [Backend]; backends.FlowNeeder has its contract.
type flowNeeder interface{ NeedsFlows() bool }

// finder is an optional ability of a [Backend]; backends.Finder has its contract.
type finder interface{ Found() []*ServicePort }

// foundTaker is an optional ability of a [FlowCleaner]: the next Follow also removes flows to these frontends, unless they
// exist.
type foundTaker interface{ Find(found []*ServicePort) }

// handOver gives Flows what the Backend has found of an earlier process. The Backend then forgets it.
func (r *Runner) handOver() {
	f, finds := r.Backend.(finder)
	if !finds {
		return
	}
	found := f.Found()
	if c, cleans := r.Flows.(foundTaker); cleans {
		c.Find(found)
	}
}

// needsFlows reports whether the Backend needs Flows, and has none.
func (r *Runner) needsFlows() bool {
	n, can := r.Backend.(flowNeeder)
	return can && r.Flows == nil && n.NeedsFlows()
}
