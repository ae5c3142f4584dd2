package nftables

import (
	"slices"

	"github.com/vipkit/vipkit/backends"
)

// The slot of an endpoint depends on the snapshot and on earlier changes: a new endpoint gets
// the slot of a removed one. If more endpoints are removed than added, the endpoints of the last slots
// move to the gaps. So adding, removing or exchanging one endpoint writes two or three
// elements, however many endpoints there are. A later process adopts the slots that it
// finds.

// slotPlan is a plan of the changes of slots in some pools.
type slotPlan struct {
	pools []poolPlan
	index map[slotPool]int
}

type poolPlan struct {
	id      slotPool
	old     []slot
	removed []slot
	added   []slot
	// changes are the slots to write, each one once; length is the number of filled slots
	// after that.
	changes []slotChange
	length  int
}

// slotChange writes an endpoint to a slot, or empties the slot.
type slotChange struct {
	at     int
	filled bool
	slot   slot
}

// plan computes the changes of slots for some operations.
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

// pool returns the index of a pool in the plan.
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
	// The endpoints of the last slots move to the remaining gaps, the lowest gap first.
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

// gaps returns the slots of removed endpoints in ascending order.
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

// apply stores the slots after a plan was committed.
func (p *slotPlan) apply(current map[slotPool][]slot) {
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

// resized returns n slots, in the same memory unless that is too small or much too large.
func resized(slots []slot, n int) []slot {
	if n == len(slots) {
		return slots
	}
	if n > cap(slots) || n < cap(slots)/4 {
		return append(make([]slot, 0, n), slots[:min(n, len(slots))]...)[:n]
	}
	return slots[:n]
}
