package backends

import (
	"slices"

	"github.com/vipkit/vipkit/proxy"
)

// planner turns changes into operations. It keeps its memory between plans.
type planner[K Key, V comparable] struct {
	changes  []change
	old, new []Object[K, V]
	differ   differ[K, V]
	order    []int
	sorted   []Op[K, V]
	current  plan[K, V]
}

// plan is what must be done for some changes, and what is to be noted if it
// could be done.
type plan[K Key, V comparable] struct {
	ops []Op[K, V]
	// shared are the differences in owners of shared objects, in order of
	// appearance. index finds them by key where they are many.
	shared []sharedDelta[K, V]
	index  map[K]int
	// claimed are the places of leftovers that are wanted.
	claimed []int32
	// moved says that an object goes from one port to another.
	moved bool
}

type sharedDelta[K Key, V comparable] struct {
	key   K
	count int
	value V
	// valued says that value is what an owner wants.
	valued bool
}

// few is how many entries are searched one by one before an index pays.
const few = 24

// plan is valid until the next call.
func (pl *planner[K, V]) plan(r *reconciler[K, V], changes []change) *plan[K, V] {
	p := &pl.current
	p.reset()
	for i := range changes {
		pl.compare(r, &changes[i])
		p.note(&pl.differ, r.leftovers)
	}
	if len(changes) > 1 {
		p.joinMoves()
	}
	p.sharedOps(r.owners, r.leftovers)
	return p
}

// compare finds what a change makes different.
func (pl *planner[K, V]) compare(r *reconciler[K, V], c *change) {
	d := &pl.differ
	if r.diff != nil && c.old != nil && c.new != nil && c.oldNode == c.newNode {
		var done bool
		d.reset()
		if d.removed, d.added, done = r.diff.RenderDiff(c.newNode, proxy.Change{Old: c.old, New: c.new}, d.removed, d.added); done {
			return
		}
	}
	pl.old = collect(pl.old[:0], r.render, side{c.oldNode, c.old, c.static})
	pl.new = collect(pl.new[:0], r.render, side{c.newNode, c.new, c.static})
	d.run(pl.old, pl.new)
}

func (p *plan[K, V]) reset() {
	if cap(p.ops) > 2*chunk {
		*p = plan[K, V]{}
	}
	p.ops, p.shared, p.claimed, p.index, p.moved = p.ops[:0], p.shared[:0], p.claimed[:0], nil, false
}

// side is what is rendered before or after a change.
type side struct {
	node   *proxy.Node
	port   *proxy.ServicePort
	static bool
}

// collect renders into a buffer. There is nothing to render of a port that is
// not there, nor of the static objects of an unknown node.
func collect[K Key, V comparable](into []Object[K, V], render Render[K, V], s side) []Object[K, V] {
	if s.node == nil || s.port == nil && !s.static {
		return into
	}
	return render(s.node, s.port, into)
}

// note adds to the plan what a difference demands.
func (p *plan[K, V]) note(d *differ[K, V], left *leftovers[K, V]) {
	for i := range d.removed {
		if o := &d.removed[i]; o.Key.Shared() {
			p.share(o, -1)
		} else {
			p.ops = append(p.ops, Op[K, V]{Kind: Remove, Key: o.Key, Value: o.Value})
		}
	}
	for i := range d.changed {
		if o := &d.changed[i]; o.Key.Shared() {
			p.share(o, 0)
		} else {
			p.ops = append(p.ops, Op[K, V]{Kind: Replace, Key: o.Key, Value: o.Value})
		}
	}
	for i := range d.added {
		if o := &d.added[i]; o.Key.Shared() {
			p.share(o, +1)
		} else {
			p.put(o.Key, o.Value, left)
		}
	}
}

// put makes an object be that this backend has not made itself yet.
func (p *plan[K, V]) put(k K, v V, left *leftovers[K, V]) {
	kind := Add
	if place, found := left.find(k); found {
		p.claimed = append(p.claimed, place)
		left.claimed[place] = true // a second one who wants it finds it taken
		if left.objects[place].Value == v {
			return
		}
		kind = Replace
	}
	p.ops = append(p.ops, Op[K, V]{Kind: kind, Key: k, Value: v})
}

// share notes that a shared object has more owners, fewer, or an owner that
// wants another value.
func (p *plan[K, V]) share(o *Object[K, V], count int) {
	d := p.delta(o.Key)
	d.count += count
	if count >= 0 {
		d.value, d.valued = o.Value, true
	}
}

func (p *plan[K, V]) delta(k K) *sharedDelta[K, V] {
	if p.index == nil && len(p.shared) > few {
		p.index = make(map[K]int, max(4*few, cap(p.shared)))
		for i := range p.shared {
			p.index[p.shared[i].key] = i
		}
	}
	if p.index != nil {
		if i, ok := p.index[k]; ok {
			return &p.shared[i]
		}
		p.index[k] = len(p.shared)
	} else {
		for i := range p.shared {
			if p.shared[i].key == k {
				return &p.shared[i]
			}
		}
	}
	p.shared = append(p.shared, sharedDelta[K, V]{key: k})
	return &p.shared[len(p.shared)-1]
}

// sharedOps adds the operations on shared objects that get a first or lose a
// last owner, or another value.
func (p *plan[K, V]) sharedOps(owners map[K]owned[V], left *leftovers[K, V]) {
	for i := range p.shared {
		d := &p.shared[i]
		have := owners[d.key]
		switch {
		case have.count+d.count <= 0:
			if have.count > 0 {
				p.ops = append(p.ops, Op[K, V]{Kind: Remove, Key: d.key, Value: have.value})
			}
		case have.count == 0:
			p.put(d.key, d.value, left)
		case d.valued && d.value != have.value:
			p.ops = append(p.ops, Op[K, V]{Kind: Replace, Key: d.key, Value: d.value})
		}
	}
}

// joinMoves makes one operation out of two where an object changes its owner: a
// port lets go of it and another one takes it up.
func (p *plan[K, V]) joinMoves() {
	removed := map[K]int{}
	for i := range p.ops {
		if p.ops[i].Kind == Remove {
			removed[p.ops[i].Key] = i
		}
	}
	if len(removed) == 0 {
		return
	}
	drop := map[int]bool{}
	for i := range p.ops {
		at, moved := removed[p.ops[i].Key]
		if !moved || p.ops[i].Kind != Add {
			continue
		}
		drop[at], p.moved = true, true
		if p.ops[i].Value == p.ops[at].Value {
			drop[i] = true
		} else {
			p.ops[i].Kind = Replace
		}
	}
	if len(drop) == 0 {
		return
	}
	i := -1
	p.ops = slices.DeleteFunc(p.ops, func(Op[K, V]) bool {
		i++
		return drop[i]
	})
}
