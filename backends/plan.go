package backends

import (
	"slices"

	"github.com/vipkit/vipkit/proxy"
)

// planner turns changes into operations. It keeps its memory between plans.
type planner[K Key, V comparable] struct {
	changes  []change[K]
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
	// claimed is what was pending, and is not any more once the plan is carried out. taken finds it
	// by key; it is nil unless the plan meets a service port of which something is pending.
	claimed []claim[K, V]
	taken   map[K]int
	// moved says that an object changes its owner. at counts the changes that are planned.
	moved bool
	at    int
}

// claim is what the kernel holds of an object that the change of a service port concerns.
type claim[K Key, V comparable] struct {
	key K
	held[V]
	by int // the change
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
func (pl *planner[K, V]) plan(r *reconciler[K, V], changes []change[K]) *plan[K, V] {
	p := &pl.current
	p.reset()
	for i := range changes {
		if k := changes[i].left; k != nil {
			p.leave(*k, r.pending)
			continue
		}
		p.at = i + 1
		pl.compare(r, &changes[i])
		p.note(&pl.differ, r.pending)
	}
	if len(changes) > 1 && changes[0].left == nil {
		p.joinMoves()
	}
	p.sharedOps(r.owners, r.pending)
	return p
}

// leave adds the removal of an object that nothing needs.
func (p *plan[K, V]) leave(k K, pending map[K]held[V]) {
	if h, _ := p.claim(k, pending); h.exists {
		p.ops = append(p.ops, opOf(Remove, &Object[K, V]{Key: k, Value: h.value}))
	}
}

// claim takes what is pending of an object.
func (p *plan[K, V]) claim(k K, pending map[K]held[V]) (h held[V], found bool) {
	if h, found = pending[k]; found {
		p.claimed = append(p.claimed, claim[K, V]{k, h, p.at})
		delete(pending, k) // so no second port claims it
	}
	return h, found
}

// isTaken reports whether another port has claimed an object: then it moves between the two.
func (p *plan[K, V]) isTaken(k K) bool {
	for i := len(p.taken); i < len(p.claimed); i++ {
		p.taken[p.claimed[i].key] = p.claimed[i].by
	}
	by, taken := p.taken[k]
	taken = taken && by != p.at
	p.moved = p.moved || taken
	return taken
}

// compare finds the difference between what the kernel holds of a port and what it should.
func (pl *planner[K, V]) compare(r *reconciler[K, V], c *change[K]) {
	d, p := &pl.differ, &pl.current
	isExact := len(r.pending)+len(p.claimed) == 0 // the kernel holds what was applied
	if r.able.RenderDiff != nil && c.old != nil && c.new != nil && c.oldEnv == c.newEnv && isExact {
		var done bool
		d.reset()
		if d.removed, d.added, done = r.able.RenderDiff(*c.newEnv, proxy.Change{Old: c.old, New: c.new}, d.removed, d.added); done {
			return
		}
	}
	pl.old = collect(pl.old[:0], r.render, rendering{c.oldEnv, c.old, c.static})
	pl.new = collect(pl.new[:0], r.render, rendering{c.newEnv, c.new, c.static})
	if !isExact && c.oldEnv != nil {
		p.comparePending(pl.new, r.pending)
		pl.old = p.correct(pl.old, r.pending)
	}
	d.run(pl.old, pl.new)
}

// comparePending has objects compared with what is pending that are shared and do not change.
func (p *plan[K, V]) comparePending(objects []Object[K, V], pending map[K]held[V]) {
	for i := range objects {
		if o := &objects[i]; o.Key.Shared() {
			if _, found := pending[o.Key]; found {
				p.share(o, 0)
			}
		}
	}
}

// correct corrects the old objects of a port, unless they are shared, by what is pending.
func (p *plan[K, V]) correct(old []Object[K, V], pending map[K]held[V]) []Object[K, V] {
	if p.taken == nil {
		p.taken = map[K]int{}
	}
	exist := old[:0]
	for _, o := range old {
		if o.Key.Shared() || p.exists(&o, pending) {
			exist = append(exist, o)
		}
	}
	return exist
}

// exists reports whether the kernel holds an object of a port, which gets the value that it has there.
func (p *plan[K, V]) exists(o *Object[K, V], pending map[K]held[V]) bool {
	h, found := p.claim(o.Key, pending)
	if found && h.value != o.Value {
		o.Value, o.Payload = h.value, nil
	}
	return (!found || h.exists) && !p.isTaken(o.Key)
}

func (p *plan[K, V]) reset() {
	if cap(p.ops) > 2*chunk {
		*p = plan[K, V]{}
	}
	p.ops, p.shared, p.claimed, p.index, p.moved = p.ops[:0], p.shared[:0], p.claimed[:0], nil, false
	p.taken = nil
}

// rendering is what is rendered before or after a change.
type rendering struct {
	env    *Env
	port   *proxy.ServicePort
	static bool
}

// collect renders into a buffer. It renders nothing without a world or a node, and nothing for a
// nil port unless the static objects are requested.
func collect[K Key, V comparable](into []Object[K, V], render Render[K, V], s rendering) []Object[K, V] {
	if s.env == nil || s.env.Node == nil || s.port == nil && !s.static {
		return into
	}
	return render(*s.env, s.port, into)
}

// note adds the operations of a difference to the plan.
func (p *plan[K, V]) note(d *differ[K, V], pending map[K]held[V]) {
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
			p.put(o, pending)
		}
	}
}

// put adds an object that no service port had, or adopts one that exists.
func (p *plan[K, V]) put(o *Object[K, V], pending map[K]held[V]) {
	h, found := p.claim(o.Key, pending)
	if !found && p.taken != nil {
		p.isTaken(o.Key)
	}
	p.reach(h, o)
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
func (p *plan[K, V]) sharedOps(owners map[K]owned[V], pending map[K]held[V]) {
	for i := range p.shared {
		d := &p.shared[i]
		have := owners[d.key]
		h, found := p.claim(d.key, pending)
		if !found {
			h = held[V]{exists: have.count > 0, value: have.value}
		}
		want := have.value
		if d.valued {
			want = d.value
		}
		if have.count+d.count <= 0 {
			if h.exists {
				p.ops = append(p.ops, opOf(Remove, &Object[K, V]{Key: d.key, Value: h.value}))
			}
			continue
		}
		p.reach(h, &Object[K, V]{d.key, want, d.payload})
	}
}

// reach adds the operation that makes an object of what the kernel holds.
func (p *plan[K, V]) reach(h held[V], o *Object[K, V]) {
	switch {
	case !h.exists:
		p.ops = append(p.ops, opOf(Add, o))
	case h.value != o.Value:
		p.ops = append(p.ops, opOf(Replace, o))
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
