// Package nodecheck reads the settings of a node that stand in the way of Services, for
// backends that are a backends.NodeChecker. Which ones those are depends on how a
// dataplane carries packets:
//
//	func (b *backend) CheckNode(s proxy.Snapshot) []*proxy.Problem { return nodecheck.Translation(s) }
//
// It says nothing of what it cannot tell at little cost: whether the rules of other
// programs let packets through.
//
// On other systems than Linux the package is empty.
package nodecheck
