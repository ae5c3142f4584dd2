// Package nodecheck finds settings of a node that break Services. Which settings those are
// depends on how a dataplane carries packets:
//
//	proxy.Abilities{CheckNode: nodecheck.Translation}
//
// It reads rules of other programs only in chains that drop packets by default, as [Firewalls] says.
// It does not look for rules that drop: that would cost too much.
//
// On other systems than Linux the package is empty.
package nodecheck
