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
	pl.ranks = ranks
	// Each operation moves at most once: a second list would be the largest one of a first load.
	to := slices.Grow(reuse(pl.indexes), len(ops))[:len(ops)]
	next := 0
	for _, r := range ranks {
		for i := range ops {
			if rankOf(&ops[i]) == r {
				to[i] = next
				next++
			}
		}
	}
	for i := range ops {
		for j := to[i]; j != i; j = to[i] {
			ops[i], ops[j] = ops[j], ops[i]
			to[i], to[j] = to[j], j
		}
	}
	pl.indexes = to
}

// rankOf returns the order of an operation: additions and replacements by rank, then
// removals by falling rank.
func rankOf[K Key, V comparable](op *Op[K, V]) int {
	if op.Kind == Remove {
		return 1<<30 - op.Key.Rank()
	}
	return op.Key.Rank()
}
