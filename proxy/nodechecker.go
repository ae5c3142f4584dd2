package proxy

// nodeChecker is an optional ability of a [Backend]; backends.NodeChecker has its
// contract.
type nodeChecker interface {
	CheckNode(s Snapshot) []*Problem
}

// checkNode logs settings of the node that begin or cease to break Services.
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
	x.settings.Update(x.Logger, "node setting breaks Services", found, (*Problem).place)
}
