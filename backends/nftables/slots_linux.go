package nftables

import (
	"slices"

	"github.com/vipkit/vipkit/backends"
)

// Which slot an endpoint stands in is no matter of what is wanted, only of
// what has been done: a new endpoint takes a slot that another one leaves, and
// else the last one moves into a gap. So one endpoint more, less or instead of
// another writes two or three elements, however many there are. A later process
// takes the slots as it finds them.

// slotPlan is how the slots of some pools will be filled.
type slotPlan struct {
	pools []poolPlan
	index map[slotPool]int
}

type poolPlan struct {
	id       slotPool
	old, new []slot
	removed  []slot
	added    []slot
}

// plan works out the slots after some operations.
func (p *slotPlan) plan(ops []op, current map[slotPool][]slot) {
	last := -1
	for i := range ops {
		k := &ops[i].Key
		if k.kind != kindEndpoint || ops[i].Kind == backends.Replace {
			continue
		}
		id := k.slotPool()
		if last < 0 || p.pools[last].id != id {
			last = p.pool(id, current)
		}
		pool := &p.pools[last]
		if ops[i].Kind == backends.Remove {
			pool.removed = append(pool.removed, k.slot())
		} else {
			pool.added = append(pool.added, k.slot())
		}
	}
	for i := range p.pools {
		p.pools[i].fill()
	}
}

// pool gives the place of the plan for a pool.
func (p *slotPlan) pool(id slotPool, current map[slotPool][]slot) int {
	if i, ok := p.index[id]; ok {
		return i
	}
	if p.index == nil {
		p.index = map[slotPool]int{}
	}
	p.index[id] = len(p.pools)
	p.pools = append(p.pools, poolPlan{id: id, old: current[id]})
	return len(p.pools) - 1
}

func (p *poolPlan) fill() {
	if len(p.old) == 0 {
		p.new = slices.Clone(p.added) // no larger than it must be: it is kept
		return
	}
	gaps := p.gaps()
	p.new = append(make([]slot, 0, len(p.old)+max(0, len(p.added)-len(gaps))), p.old...)
	n := min(len(gaps), len(p.added))
	for i, at := range gaps[:n] {
		p.new[at] = p.added[i]
	}
	p.new = append(p.new, p.added[n:]...)
	// The last slots move into what gaps are left, the lowest gap first.
	gaps = gaps[n:]
	for len(gaps) > 0 {
		end := len(p.new) - 1
		if highest := gaps[len(gaps)-1]; highest == end {
			gaps = gaps[:len(gaps)-1]
		} else {
			p.new[gaps[0]] = p.new[end]
			gaps = gaps[1:]
		}
		p.new = p.new[:end]
	}
}

// gaps gives the slots that removed endpoints leave, in rising order.
func (p *poolPlan) gaps() []int {
	if len(p.removed) == 0 {
		return nil
	}
	gaps := make([]int, 0, len(p.removed))
	if len(p.removed) <= 8 {
		for _, s := range p.removed {
			if i := slices.Index(p.old, s); i >= 0 {
				gaps = append(gaps, i)
			}
		}
		slices.Sort(gaps)
		return gaps
	}
	removed := make(map[slot]struct{}, len(p.removed))
	for _, s := range p.removed {
		removed[s] = struct{}{}
	}
	for i, s := range p.old {
		if _, ok := removed[s]; ok {
			gaps = append(gaps, i)
		}
	}
	return gaps
}

// settle notes the slots of a plan that was carried out.
func (p *slotPlan) settle(current map[slotPool][]slot) {
	for i := range p.pools {
		if pool := &p.pools[i]; len(pool.new) > 0 {
			current[pool.id] = pool.new
		} else {
			delete(current, pool.id)
		}
	}
}
