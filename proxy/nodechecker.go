package proxy

import "slices"

// nodeChecker is an optional ability of a [Backend]; backends.NodeChecker has its
// contract.
type nodeChecker interface {
	CheckNode(s Snapshot) []*Problem
}

// checkNode logs the problems of the node that are new, and those that are fixed.
func (s *runState) checkNode() {
	c, can := s.Backend.(nodeChecker)
	if !can {
		return
	}
	var found []*Problem
	if err := safely(func() error { found = c.CheckNode(s.want); return nil }); err != nil {
		s.Logger.Error(err, "check of node settings failed")
		return
	}
	for _, p := range found {
		if !isAmong(s.found, p, (*Problem).Error) {
			s.Logger.Info("node setting breaks Services", "setting", p.Field, "problem", p.Err.Error())
		}
	}
	for _, p := range s.found {
		if !isAmong(found, p, func(p *Problem) string { return p.Field }) {
			s.Logger.Info("node setting fixed", "setting", p.Field)
		}
	}
	s.found = found
}

func isAmong(list []*Problem, p *Problem, by func(*Problem) string) bool {
	return slices.ContainsFunc(list, func(o *Problem) bool { return by(o) == by(p) })
}
