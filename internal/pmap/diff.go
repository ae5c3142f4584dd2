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
// origins it costs O(n·log n), and if one map is empty, O(n). It does not allocate.
func (m Map[K, V]) Diff(old Map[K, V]) iter.Seq[Change[K, V]] {
	return func(yield func(Change[K, V]) bool) {
		d := differ[K, V]{yield: yield}
		d.run(old.root, m.root, nil, nil)
	}
}

// differ compares two trees, and skips the subtrees that they share.
type differ[K Key[K], V comparable] struct {
	yield func(Change[K, V]) bool
	// pairs is how many pairs of different subtrees were compared.
	pairs int
}

// run compares what two subtrees have between two keys, exclusive; nil is no bound. It returns false
// once yield did.
//
// Two trees of one origin have the same shape, except near the keys that only one of them has. Such a key is
// the root of its subtree, and separates the keys of the other tree without being there: that
// tree is compared twice, with the key as a bound.
func (d *differ[K, V]) run(old, now *node[K, V], above, below *K) bool {
	if old == now {
		return true
	}
	old, now = old.between(above, below), now.between(above, below)
	if old == now {
		return true
	}
	d.pairs++
	if old == nil || now == nil || old.prio == now.prio && old.entry.key == now.entry.key {
		was, oldLeft, oldRight := old.parts()
		is, nowLeft, nowRight := now.parts()
		return d.run(oldLeft, nowLeft, above, below) && d.compare(was, is) && d.run(oldRight, nowRight, above, below)
	}
	k := &old.entry.key
	if now.prio > old.prio || now.prio == old.prio && now.entry.key.Compare(*k) < 0 {
		k = &now.entry.key
	}
	was, oldLeft, oldRight := old.split(k)
	is, nowLeft, nowRight := now.split(k)
	return d.run(oldLeft, nowLeft, above, k) && d.compare(was, is) && d.run(oldRight, nowRight, k, below)
}

// between returns the highest node of a subtree whose key is between two keys.
func (n *node[K, V]) between(above, below *K) *node[K, V] {
	for n != nil {
		switch {
		case above != nil && n.entry.key.Compare(*above) <= 0:
			n = n.right
		case below != nil && n.entry.key.Compare(*below) >= 0:
			n = n.left
		default:
			return n
		}
	}
	return nil
}

// parts returns the entry of a node and its subtrees, nil if there is no node.
func (n *node[K, V]) parts() (e *entry[K, V], left, right *node[K, V]) {
	if n == nil {
		return nil, nil, nil
	}
	return n.entry, n.left, n.right
}

// split returns the entry of a key, nil if the subtree lacks it, and subtrees with all lower and all higher keys.
func (n *node[K, V]) split(k *K) (e *entry[K, V], left, right *node[K, V]) {
	if n.entry.key == *k {
		return n.entry, n.left, n.right
	}
	return n.find(*k), n, n
}

// compare yields the change of one key, if there is one. An entry is nil if its map lacks the key.
func (d *differ[K, V]) compare(old, now *entry[K, V]) bool {
	if old == now || old != nil && now != nil && old.val == now.val {
		return true
	}
	var c Change[K, V]
	if old != nil {
		c.Key, c.Old, c.HadOld = old.key, old.val, true
	}
	if now != nil {
		c.Key, c.New, c.HasNew = now.key, now.val, true
	}
	return d.yield(c)
}
