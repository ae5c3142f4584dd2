package nftables

import (
	"slices"

	"github.com/vipkit/vipkit/backends"
)

// chainsAhead separates new chains, and the sets that they need, from operations that
// change the verdict of an existing frontend or restriction; the chains must be committed
// first. A packet that the kernel evaluates during a commit sees the rules from before the
// commit, but the elements from after it: a chain that the same transaction added would
// have no rules for it, so that it would pass untranslated, or unrestricted.
func chainsAhead(ops []op) (first, rest []op) {
	chains, changes := false, false
	for i := range ops {
		o := &ops[i]
		chains = chains || o.Kind == backends.Add && o.Key.kind.isChain()
		changes = changes || o.Kind == backends.Replace && (o.Key.kind == kindFrontend || o.Key.kind == kindRestriction)
	}
	if !chains || !changes {
		return nil, ops
	}
	for _, o := range ops {
		if o.Kind == backends.Add && (o.Key.kind == kindTable || o.Key.kind == kindSet || o.Key.kind.isChain()) {
			first = append(first, o)
		} else {
			rest = append(rest, o)
		}
	}
	return first, rest
}

// basesAhead separates the removal of base chains from all other operations, if those remove the
// table, too. No packet may be in the base chains when its elements are removed.
func basesAhead(ops []op) (first, rest []op) {
	if !slices.ContainsFunc(ops, func(o op) bool { return o.Key.kind == kindTable && o.Kind == backends.Remove }) {
		return nil, ops
	}
	for _, o := range ops {
		if isBaseChain(o) && o.Kind == backends.Remove {
			first = append(first, o)
		} else {
			rest = append(rest, o)
		}
	}
	return first, rest
}
