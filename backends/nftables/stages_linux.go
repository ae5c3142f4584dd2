package nftables

import (
	"bytes"
	"cmp"
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

// sequence is the order in which operations are committed.
type sequence struct {
	ops []op
	// indexes are the positions of ops in the commit; nil: their own.
	indexes []int
}

// groupByFrontend sorts a part of the operations so that it may be divided: first what frontends may need,
// then the operations of each frontend, and then the removal of what no frontend needs any more. Between two
// transactions a packet would meet the new verdict of a frontend and its old endpoints otherwise.
func (s *sequence) groupByFrontend(begin, end int) {
	type entry struct {
		op    op
		index int
	}
	all := make([]entry, len(s.ops))
	for i := range s.ops {
		all[i] = entry{s.ops[i], i}
		if s.indexes != nil {
			all[i].index = s.indexes[i]
		}
	}
	slices.SortStableFunc(all[begin:end], func(a, b entry) int {
		return cmp.Or(cmp.Compare(stageOf(&a.op), stageOf(&b.op)), compareFrontends(&a.op, &b.op))
	})
	s.ops, s.indexes = make([]op, len(all)), make([]int, len(all))
	for i := range all {
		s.ops[i], s.indexes[i] = all[i].op, all[i].index
	}
}

// stageOf returns 1 for an operation on what a frontend alone has, 0 for one that adds or replaces
// anything else, 2 for one that removes anything else.
func stageOf(o *op) int {
	switch {
	case o.Key.ofFrontend():
		return 1
	case o.Kind == backends.Remove:
		return 2
	}
	return 0
}

// ofFrontend reports whether a single frontend has an object.
func (k *key) ofFrontend() bool {
	return k.kind == kindFrontend || k.kind == kindRestriction || k.kind == kindRecord || k.kind == kindEndpoint
}

// compareFrontends compares the frontends that have objects. All objects that no single frontend has are
// equal.
func compareFrontends(a, b *op) int {
	if !a.Key.ofFrontend() || !b.Key.ofFrontend() {
		return 0
	}
	return cmp.Or(cmp.Compare(a.Key.fam, b.Key.fam), cmp.Compare(a.Key.proto, b.Key.proto), cmp.Compare(a.Key.port, b.Key.port),
		bytes.Compare(a.Key.addr[:], b.Key.addr[:]))
}

// middle returns the index nearest to the middle at which the operations of no frontend are divided; if all
// are of one frontend, it returns the middle.
func middle(ops []op) int {
	half := len(ops) / 2
	splits := func(i int) bool {
		return i > 0 && i < len(ops) && ops[i].Key.ofFrontend() && ops[i-1].Key.ofFrontend() && compareFrontends(&ops[i-1], &ops[i]) == 0
	}
	for away := range len(ops) - half {
		for _, i := range [...]int{half - away, half + away} {
			if i > 0 && i < len(ops) && !splits(i) {
				return i
			}
		}
	}
	return half
}
