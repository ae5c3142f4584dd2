package nftables

import (
	"slices"

	"github.com/vipkit/vipkit/backends"
)

// stages returns which operations a transaction of their own must have, before all others; nil if one
// transaction may have all. If awaits is set, no packet may be left that began before each.
func stages(ops []op) (ahead func(*op) bool, awaits bool) {
	if slices.ContainsFunc(ops, func(o op) bool { return o.Key.kind == kindTable && o.Kind == backends.Remove }) {
		return isBaseRemoval, true
	}
	if needsChainsAhead(ops) {
		return isChainsNeed, false
	}
	return nil, false
}

// isBaseRemoval reports whether an operation removes a base chain. If the table goes, too, no packet
// may be in the base chains when its elements are removed.
func isBaseRemoval(o *op) bool { return isBaseChain(*o) && o.Kind == backends.Remove }

// needsChainsAhead reports whether operations add chains and change the verdict of an existing
// frontend or restriction. A packet that the kernel evaluates during a commit sees the rules from before
// the commit, but the elements from after it: a chain that the same transaction added would
// have no rules for it, so that it would pass untranslated, or unrestricted.
func needsChainsAhead(ops []op) bool {
	chains, changes := false, false
	for i := range ops {
		o := &ops[i]
		chains = chains || o.Kind == backends.Add && o.Key.kind.isChain()
		changes = changes || o.Kind == backends.Replace && (o.Key.kind == kindFrontend || o.Key.kind == kindRestriction)
	}
	return chains && changes
}

// isChainsNeed reports whether an operation adds a chain, or what its rules may need.
func isChainsNeed(o *op) bool {
	return o.Kind == backends.Add && (o.Key.kind == kindTable || o.Key.kind == kindSet || o.Key.kind.isChain())
}
