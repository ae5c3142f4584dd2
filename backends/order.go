package backends

import "slices"

// inOrder sorts ops as [Target.Commit] promises, keeping the order of those of
// one rank. There are few ranks, so counting them is all the sorting it takes.
func (pl *planner[K, V]) inOrder(ops []Op[K, V]) []Op[K, V] {
	if len(ops) < 2 {
		return ops
	}
	ranks := pl.order[:0]
	for i := range ops {
		if r := rankOf(&ops[i]); !slices.Contains(ranks, r) {
			ranks = append(ranks, r)
		}
	}
	slices.Sort(ranks)
	pl.order = ranks
	if cap(pl.sorted) < len(ops) || cap(pl.sorted) > 4*chunk && len(ops) < chunk {
		pl.sorted = make([]Op[K, V], 0, len(ops))
	}
	pl.sorted = pl.sorted[:0]
	for _, r := range ranks {
		for i := range ops {
			if rankOf(&ops[i]) == r {
				pl.sorted = append(pl.sorted, ops[i])
			}
		}
	}
	return pl.sorted
}

// rankOf gives the place of an operation: puts by rank, then removals by
// falling rank.
func rankOf[K Key, V comparable](op *Op[K, V]) int {
	if op.Kind == Remove {
		return 1<<30 - op.Key.Rank()
	}
	return op.Key.Rank()
}
