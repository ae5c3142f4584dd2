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
	id      slotPool
	old     []slot
	removed []slot
	added   []slot
	// changes are what to write, each slot once; length is how many slots are
	// filled then.
	changes []slotChange
	length  int
}

// slotChange puts an endpoint in a slot, or leaves it empty.
type slotChange struct {
	at     int
	filled bool
	slot   slot
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
	p.length = len(p.old)
	gaps := p.gaps()
	p.changes = make([]slotChange, 0, max(len(p.added), len(gaps)))
	for _, s := range p.added {
		at := p.length
		if len(gaps) > 0 {
			at, gaps = gaps[0], gaps[1:]
		} else {
			p.length++
		}
		p.changes = append(p.changes, slotChange{at: at, filled: true, slot: s})
	}
	// The last slots move into what gaps are left, the lowest gap first.
	for len(gaps) > 0 {
		p.length--
		if highest := len(gaps) - 1; gaps[highest] == p.length {
			gaps = gaps[:highest]
		} else {
			p.changes = append(p.changes, slotChange{at: gaps[0], filled: true, slot: p.old[p.length]})
			gaps = gaps[1:]
		}
		p.changes = append(p.changes, slotChange{at: p.length})
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
		pool := &p.pools[i]
		slots := resized(pool.old, pool.length)
		for _, c := range pool.changes {
			if c.filled {
				slots[c.at] = c.slot
			}
		}
		switch {
		case pool.length == 0:
			delete(current, pool.id)
		case pool.length != len(pool.old):
			current[pool.id] = slots
		}
	}
}

// resized gives as many slots as are needed, in the same memory unless that is
// too small or much too large.
func resized(slots []slot, n int) []slot {
	if n == len(slots) {
		return slots
	}
	if n > cap(slots) || n < cap(slots)/4 {
		return append(make([]slot, 0, n), slots[:min(n, len(slots))]...)[:n]
	}
	return slots[:n]
}
