package backends

import "slices"

// inOrder sorts ops in place as [Target] documents, and keeps the order of the ops of one
// rank. There are few ranks, so it walks over ops once for each rank.
func (pl *planner[K, V]) inOrder(ops []Op[K, V]) {
	if len(ops) < 2 {
		return
	}
	ranks := pl.ranks[:0]
	for i := range ops {
		if r := rankOf(&ops[i]); !slices.Contains(ranks, r) {
			ranks = append(ranks, r)
		}
	}
	slices.Sort(ranks)
	sorted := slices.Grow(reuse(pl.sorted), len(ops))
	for _, r := range ranks {
		for i := range ops {
			if rankOf(&ops[i]) == r {
				sorted = append(sorted, ops[i])
			}
		}
	}
	copy(ops, sorted)
	clear(sorted) // lets the payloads be collected
	pl.ranks, pl.sorted = ranks, sorted
}

// rankOf returns the order of an operation: additions and replacements by rank, then
// removals by falling rank.
func rankOf[K Key, V comparable](op *Op[K, V]) int {
	if op.Kind == Remove {
		return 1<<30 - op.Key.Rank()
	}
	return op.Key.Rank()
}
