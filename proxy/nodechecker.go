package proxy

import "slices"

// nodeChecker is an optional ability of a [Backend]: backends.NodeChecker, which says
// what it means.
type nodeChecker interface {
	CheckNode(s Snapshot) []*Problem
}

// checkNode logs problems of the node that are new, and those that are no more.
func (s *runState) checkNode() {
	c, can := s.Backend.(nodeChecker)
	if !can {
		return
	}
	found := c.CheckNode(s.want)
	for _, p := range found {
		if !isAmong(s.found, p, (*Problem).Error) {
			s.Logger.Info("a setting of the node breaks Services", "setting", p.Field, "problem", p.Err.Error())
		}
	}
	for _, p := range s.found {
		if !isAmong(found, p, func(p *Problem) string { return p.Field }) {
			s.Logger.Info("a setting of the node breaks Services no longer", "setting", p.Field)
		}
	}
	s.found = found
}

func isAmong(list []*Problem, p *Problem, by func(*Problem) string) bool {
	return slices.ContainsFunc(list, func(o *Problem) bool { return by(o) == by(p) })
}
