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
	ranks    []int
	indexes  []int
	current  plan[K, V]
}

// plan is the operations of some changes, and what must be recorded after they are
// committed.
type plan[K Key, V comparable] struct {
	ops []Op[K, V]
	// shared are the differences in owners of shared objects, in order of
	// appearance. index finds them by key if there are many.
	shared []sharedDelta[K, V]
	index  map[K]int
	// claimed are the leftovers that a service port claimed, as List yielded them.
	claimed []Object[K, V]
	// moved says that an object changes its owner.
	moved bool
}

type sharedDelta[K Key, V comparable] struct {
	key     K
	count   int
	value   V
	payload any
	// valued says that value is what an owner rendered.
	valued bool
}

// linearLimit is how many entries are searched one by one, without an index.
const linearLimit = 24

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

// compare finds the difference that a change makes.
func (pl *planner[K, V]) compare(r *reconciler[K, V], c *change) {
	d := &pl.differ
	if r.diff != nil && c.old != nil && c.new != nil && c.oldNode == c.newNode {
		var done bool
		d.reset()
		if d.removed, d.added, done = r.diff.RenderDiff(c.newNode, proxy.Change{Old: c.old, New: c.new}, d.removed, d.added); done {
			return
		}
	}
	pl.old = collect(pl.old[:0], r.render, rendering{c.oldNode, c.old, c.static})
	pl.new = collect(pl.new[:0], r.render, rendering{c.newNode, c.new, c.static})
	d.run(pl.old, pl.new)
}

func (p *plan[K, V]) reset() {
	if cap(p.ops) > 2*chunk {
		*p = plan[K, V]{}
	}
	p.ops, p.shared, p.claimed, p.index, p.moved = p.ops[:0], p.shared[:0], p.claimed[:0], nil, false
}

// rendering is what is rendered before or after a change.
type rendering struct {
	node   *proxy.Node
	port   *proxy.ServicePort
	static bool
}

// collect renders into a buffer. It renders nothing without a node, and nothing for a nil
// port unless the static objects are requested.
func collect[K Key, V comparable](into []Object[K, V], render Render[K, V], s rendering) []Object[K, V] {
	if s.node == nil || s.port == nil && !s.static {
		return into
	}
	return render(s.node, s.port, into)
}

// note adds the operations of a difference to the plan.
func (p *plan[K, V]) note(d *differ[K, V], left map[K]V) {
	for i := range d.removed {
		if o := &d.removed[i]; o.Key.Shared() {
			p.share(o, -1)
		} else {
			p.ops = append(p.ops, opOf(Remove, o))
		}
	}
	for i := range d.changed {
		if o := &d.changed[i]; o.Key.Shared() {
			p.share(o, 0)
		} else {
			p.ops = append(p.ops, opOf(Replace, o))
		}
	}
	for i := range d.added {
		if o := &d.added[i]; o.Key.Shared() {
			p.share(o, +1)
		} else {
			p.put(o, left)
		}
	}
}

// put adds an object that this backend has not made itself yet, or adopts a leftover.
func (p *plan[K, V]) put(o *Object[K, V], left map[K]V) {
	kind := Add
	if value, found := left[o.Key]; found {
		p.claimed = append(p.claimed, Object[K, V]{Key: o.Key, Value: value})
		delete(left, o.Key) // so no second port claims it
		if value == o.Value {
			return
		}
		kind = Replace
	}
	p.ops = append(p.ops, opOf(kind, o))
}

func opOf[K Key, V comparable](kind OpKind, o *Object[K, V]) Op[K, V] {
	return Op[K, V]{Kind: kind, Key: o.Key, Value: o.Value, Payload: o.Payload}
}

// share records that a shared object has more owners, fewer, or another value.
func (p *plan[K, V]) share(o *Object[K, V], count int) {
	d := p.delta(o.Key)
	d.count += count
	if count >= 0 || !d.valued {
		d.value, d.payload, d.valued = o.Value, o.Payload, count >= 0
	}
}

func (p *plan[K, V]) delta(k K) *sharedDelta[K, V] {
	if p.index == nil && len(p.shared) > linearLimit {
		p.index = make(map[K]int, max(4*linearLimit, cap(p.shared)))
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
func (p *plan[K, V]) sharedOps(owners map[K]owned[V], left map[K]V) {
	for i := range p.shared {
		d := &p.shared[i]
		have := owners[d.key]
		switch {
		case have.count+d.count <= 0:
			if have.count > 0 {
				p.ops = append(p.ops, opOf(Remove, &Object[K, V]{d.key, have.value, d.payload}))
			}
		case have.count == 0:
			p.put(&Object[K, V]{d.key, d.value, d.payload}, left)
		case d.valued && d.value != have.value:
			p.ops = append(p.ops, opOf(Replace, &Object[K, V]{d.key, d.value, d.payload}))
		}
	}
}

// joinMoves makes one operation of two if an object changes its owner: one port does
// not need it any more, and another one needs it.
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
