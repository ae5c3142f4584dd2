package pmap

import "iter"

// Change is one key in which two maps differ. Old is valid if HadOld is true, New if
// HasNew is. At least one of the two is true; if both are, the values differ.
type Change[K Key[K], V comparable] struct {
	Key            K
	Old, New       V
	HadOld, HasNew bool
}

// Diff yields the changes that lead from old to m, in the order of the keys.
//
// For maps of one origin it costs O(d·log n), where d is the number of keys
// that were set or deleted since the two were the same map. For maps of different
// origins, and if one map is empty, it costs O(n). It does not allocate (except for
// trees of extreme height).
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

// compare compares the nodes that two maps have for one key. One is nil if its map
// lacks the key.
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

// cursor walks a tree in key order. The caller decides by enter whether it descends
// into a subtree.
type cursor[K Key[K], V comparable] struct {
	// under is the subtree that is next as a whole. If it is nil, the entry of the
	// last node of the path is next, and then that node's right subtree.
	under *node[K, V]
	// depth is the length of the path, which has only the nodes from which the
	// cursor descended to the left. These are at most about e·ln n, so near, which
	// needs no allocation, is enough for millions of keys; far holds the rest.
	depth int
	near  [48]*node[K, V]
	far   []*node[K, V]
}

// enter descends by one node: the left subtree of under becomes the next subtree.
func (c *cursor[K, V]) enter() {
	if c.depth < len(c.near) {
		c.near[c.depth] = c.under
	} else {
		c.far = append(c.far[:c.depth-len(c.near)], c.under)
	}
	c.depth++
	c.under = c.under.left
}

// last returns the last node of the path, nil if the cursor is at the end.
func (c *cursor[K, V]) last() *node[K, V] {
	switch {
	case c.depth == 0:
		return nil
	case c.depth <= len(c.near):
		return c.near[c.depth-1]
	}
	return c.far[c.depth-len(c.near)-1]
}

// leave moves past the entry of n, the last node of the path.
func (c *cursor[K, V]) leave(n *node[K, V]) {
	c.depth--
	c.under = n.right
}

// pair walks two trees at once and skips the subtrees that they share.
//
// It is correct for any two search trees, and fast for two of one origin: they have
// the same shape except near the few keys that only one of them has, so a descent in
// both at once reaches a shared subtree in both at the same time. Where the shape
// differs, one cursor may enter a shared subtree before the other one. Then both
// descend to its first key, in O(log n) steps, and are synchronous again: they still
// skip everything to the right of that path.
type pair[K Key[K], V comparable] struct{ old, now cursor[K, V] }

// next returns the nodes of the next key of both trees, nil for a tree that
// lacks the key; at the end both are nil.
func (p *pair[K, V]) next() (old, now *node[K, V]) {
	for p.enter() {
		// It descends until both cursors are at an entry.
	}
	return p.take()
}

// enter descends by one step towards the next entry of both trees, or skips a
// subtree that they share. It reports whether it descended.
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

// take returns the nodes that next promises, and moves past them. It requires that
// both cursors are at an entry or at the end.
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
