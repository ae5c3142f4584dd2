package pmap

import "iter"

// Change is one key in which two maps differ. Old is meaningful if HadOld, New
// if HasNew; one of these always holds, and if both do, the values differ.
type Change[K Key[K], V comparable] struct {
	Key            K
	Old, New       V
	HadOld, HasNew bool
}

// Diff yields the changes that lead from old to m, in the order of the keys.
//
// For maps of one origin it costs O(d·log n), where d is the number of keys
// that were set or deleted since the two were the same map. For others, and if
// one map is empty, it costs O(n). It does not allocate (but for trees of
// extreme height).
func (m Map[K, V]) Diff(old Map[K, V]) iter.Seq[Change[K, V]] {
	return func(yield func(Change[K, V]) bool) { diff(old.root, m.root, yield) }
}

func diff[K Key[K], V comparable](old, now *node[K, V], yield func(Change[K, V]) bool) {
	var p pair[K, V]
	p.old.under, p.now.under = old, now
	for {
		o, n := p.next()
		if o == nil && n == nil {
			return
		}
		if c, differ := compare(o, n); differ && !yield(c) {
			return
		}
	}
}

// compare looks at the nodes that two maps have for one key. One may be nil:
// its map lacks the key.
func compare[K Key[K], V comparable](old, now *node[K, V]) (c Change[K, V], differ bool) {
	if old != nil && now != nil && old.entry == now.entry {
		return c, false
	}
	if old != nil {
		c.Key, c.Old, c.HadOld = old.entry.key, old.entry.val, true
	}
	if now != nil {
		c.Key, c.New, c.HasNew = now.entry.key, now.entry.val, true
	}
	return c, c.HadOld != c.HasNew || c.Old != c.New
}

// cursor walks a tree in key order, and goes down into a subtree only when it
// is told to.
type cursor[K Key[K], V comparable] struct {
	// under is a subtree that comes next as a whole. If it is nil, the entry
	// of the last node of the path comes next, and then that node's right
	// subtree.
	under *node[K, V]
	// depth is the length of the path, which has only the nodes from which the
	// cursor went to the left. There are at most about e·ln n of these, so
	// near, which needs no allocation, will do for millions of keys; far is
	// for what goes beyond.
	depth int
	near  [48]*node[K, V]
	far   []*node[K, V]
}

// enter goes down by one node, so that the left subtree of what was under the
// cursor comes next.
func (c *cursor[K, V]) enter() {
	if c.depth < len(c.near) {
		c.near[c.depth] = c.under
	} else {
		c.far = append(c.far[:c.depth-len(c.near)], c.under)
	}
	c.depth++
	c.under = c.under.left
}

// last gives the last node of the path, nil if the cursor is at the end.
func (c *cursor[K, V]) last() *node[K, V] {
	switch {
	case c.depth == 0:
		return nil
	case c.depth <= len(c.near):
		return c.near[c.depth-1]
	}
	return c.far[c.depth-len(c.near)-1]
}

// leave goes behind the entry of n, the last node of the path.
func (c *cursor[K, V]) leave(n *node[K, V]) {
	c.depth--
	c.under = n.right
}

// pair walks two trees at once and passes over the subtrees that they share.
//
// It is right for any two search trees, and fast for two of one origin: they
// have the same shape but for the few places where one has a key that the other
// one lacks, so going down in both at once reaches what they share at the same
// time. Where the shape differs, one cursor may enter a shared subtree before
// the other one gets there. Then both go down to its first key, a way of
// O(log n), and are in step again: what hangs to the right of that way is still
// passed over.
type pair[K Key[K], V comparable] struct{ old, now cursor[K, V] }

// next gives the nodes of the next key of both trees, nil for a tree that
// lacks the key; at the end both are nil.
func (p *pair[K, V]) next() (old, now *node[K, V]) {
	for p.enter() {
		// Until both cursors are at an entry.
	}
	return p.take()
}

// enter goes one step down towards the next entry of both trees, or passes over
// a subtree that they share. It reports whether it went down.
func (p *pair[K, V]) enter() bool {
	o, n := p.old.under, p.now.under
	if o == n {
		p.old.under, p.now.under = nil, nil
		return false
	}
	if o != nil {
		p.old.enter()
	}
	if n != nil {
		p.now.enter()
	}
	return true
}

// take gives what next gives, and leaves it, when both cursors are at an entry
// or at the end.
func (p *pair[K, V]) take() (old, now *node[K, V]) {
	old, now = p.old.last(), p.now.last()
	if old != nil && now != nil && old.entry != now.entry {
		switch c := old.entry.key.Compare(now.entry.key); {
		case c < 0:
			now = nil
		case c > 0:
			old = nil
		}
	}
	if old != nil {
		p.old.leave(old)
	}
	if now != nil {
		p.now.leave(now)
	}
	return old, now
}
