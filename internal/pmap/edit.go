package pmap

import "hash/maphash"

// Edit is a batch of changes to a map. A batch changes its own nodes in place, so
// many changes make little garbage: loading n keys makes none. The map that the
// batch began with does not change.
//
// The zero Edit begins with an empty map of a new origin. An Edit is for one
// goroutine at a time.
type Edit[K Key[K], V comparable] struct{ m Map[K, V] }

// Edit begins a batch of changes.
func (m Map[K, V]) Edit() *Edit[K, V] { return &Edit[K, V]{m: m} }

// Get returns the value of a key with the changes so far, and whether the map has
// the key.
func (e *Edit[K, V]) Get(k K) (V, bool) { return e.m.Get(k) }

// Set sets the value of k to v.
func (e *Edit[K, V]) Set(k K, v V) {
	if e.m.seed == (maphash.Seed{}) {
		e.m.seed = maphash.MakeSeed()
	}
	e.set(k, v, uint32(maphash.Comparable(e.m.seed, k)))
}

func (e *Edit[K, V]) set(k K, v V, prio uint32) {
	it := entry[K, V]{key: k, val: v}
	e.m.root = e.insert(e.m.root, &it, prio)
}

// Delete removes k; it does nothing if the map lacks k.
func (e *Edit[K, V]) Delete(k K) { e.m.root = e.remove(e.m.root, &k) }

// Map ends the batch and returns its result. Later changes of the Edit are another
// batch, which begins with this result and does not change it.
func (e *Edit[K, V]) Map() Map[K, V] {
	e.m.root.publish()
	return e.m
}

// publish marks the drafts of a subtree as published. It does not descend below a
// published node, because that has no drafts below it.
func (n *node[K, V]) publish() {
	for ; n != nil && n.draft; n = n.right {
		n.draft = false
		n.left.publish()
	}
}

// own returns a node with the contents of n that the batch may change.
func (e *Edit[K, V]) own(n *node[K, V]) *node[K, V] {
	if n.draft {
		return n
	}
	c := *n
	c.draft = true
	return &c
}

// insert returns the subtree n with the entry *it in it. It returns n itself,
// unchanged, if n has an equal entry.
func (e *Edit[K, V]) insert(n *node[K, V], it *entry[K, V], prio uint32) *node[K, V] {
	// The key cannot be under a node of lower priority: it would be above it.
	if n == nil || n.prio < prio {
		return e.plant(n, it, prio)
	}
	switch c := it.key.Compare(n.entry.key); {
	case c > 0:
		if r := e.insert(n.right, it, prio); r != n.right {
			n = e.own(n)
			n.right = r
		}
	case c == 0:
		if n.entry.val != it.val {
			n = e.own(n)
			n.entry = it.clone()
		}
	case n.prio == prio:
		return e.plant(n, it, prio)
	default:
		if l := e.insert(n.left, it, prio); l != n.left {
			n = e.own(n)
			n.left = l
		}
	}
	return n
}

// clone allocates a copy, so that the entry which insert passes down can stay on the
// stack until a node needs it.
func (it *entry[K, V]) clone() *entry[K, V] {
	c := *it
	return &c
}

// plant replaces n, which lacks the key, by a new node, and puts n below it.
func (e *Edit[K, V]) plant(n *node[K, V], it *entry[K, V], prio uint32) *node[K, V] {
	top := &node[K, V]{entry: it.clone(), prio: prio, draft: true}
	below, above := &top.left, &top.right // links for the next lower and the next higher part
	for n != nil {
		n = e.own(n)
		if it.key.Compare(n.entry.key) < 0 {
			*above = n
			above = &n.left
			n = n.left
		} else {
			*below = n
			below = &n.right
			n = n.right
		}
	}
	*below, *above = nil, nil
	e.m.len++
	return top
}

// remove returns the subtree n without the key *k. It returns n itself, unchanged,
// if n lacks the key.
func (e *Edit[K, V]) remove(n *node[K, V], k *K) *node[K, V] {
	if n == nil {
		return nil
	}
	switch c := (*k).Compare(n.entry.key); {
	case c < 0:
		if l := e.remove(n.left, k); l != n.left {
			n = e.own(n)
			n.left = l
		}
	case c > 0:
		if r := e.remove(n.right, k); r != n.right {
			n = e.own(n)
			n.right = r
		}
	default:
		e.m.len--
		return e.join(n.left, n.right)
	}
	return n
}

// join makes one tree of two, of which l has the lower keys.
func (e *Edit[K, V]) join(l, r *node[K, V]) *node[K, V] {
	var root *node[K, V]
	gap := &root // link for the rest of both trees
	for l != nil && r != nil {
		if l.prio >= r.prio {
			l = e.own(l)
			*gap = l
			gap = &l.right
			l = l.right
		} else {
			r = e.own(r)
			*gap = r
			gap = &r.left
			r = r.left
		}
	}
	if l == nil {
		l = r
	}
	*gap = l
	return root
}
