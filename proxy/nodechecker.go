package proxy

import "slices"

// nodeChecker is an optional ability of a [Backend]; backends.NodeChecker has its
// contract.
type nodeChecker interface {
	CheckNode(s Snapshot) []*Problem
}

// checkNode logs the problems of the node that are new, and those that are fixed.
func (x *executor) checkNode(s Snapshot) {
	c, can := x.Backend.(nodeChecker)
	if !can {
		return
	}
	var found []*Problem
	if err := safely(func() error { found = c.CheckNode(s); return nil }); err != nil {
		x.logError(err, "check of node settings failed")
		return
	}
	for _, p := range found {
		if !isAmong(x.found, p, (*Problem).Error) {
			x.Logger.Info("node setting breaks Services", "setting", p.Field, "problem", p.Err.Error())
		}
	}
	for _, p := range x.found {
		if !isAmong(found, p, func(p *Problem) string { return p.Field }) {
			x.Logger.Info("node setting fixed", "setting", p.Field)
		}
	}
	x.found = found
}

func isAmong(list []*Problem, p *Problem, by func(*Problem) string) bool {
	return slices.ContainsFunc(list, func(o *Problem) bool { return by(o) == by(p) })
}
