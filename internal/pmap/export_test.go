package pmap

import (
	"fmt"
	"hash/maphash"
)

// Entered counts the nodes that a Diff of two maps goes down into.
func Entered[K Key[K], V comparable](old, now Map[K, V]) int {
	var p pair[K, V]
	p.old.under, p.now.under = old.root, now.root
	entered := 0
	for {
		before := p.old.depth + p.now.depth
		for p.enter() {
			continue
		}
		entered += p.old.depth + p.now.depth - before
		if o, n := p.take(); o == nil && n == nil {
			return entered
		}
	}
}

// SetWithPriority sets a key with a chosen priority instead of its hash.
func (e *Edit[K, V]) SetWithPriority(k K, v V, prio uint32) { e.set(k, v, prio) }

// Height gives the number of nodes on the longest way down from the root.
func Height[K Key[K], V comparable](m Map[K, V]) int { return m.root.height() }

func (n *node[K, V]) height() int {
	if n == nil {
		return 0
	}
	return 1 + max(n.left.height(), n.right.height())
}

// SameShape reports whether two trees have the same keys at the same places.
func SameShape[K Key[K], V comparable](a, b Map[K, V]) bool { return sameShape(a.root, b.root) }

func sameShape[K Key[K], V comparable](a, b *node[K, V]) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.entry.key == b.entry.key && a.prio == b.prio &&
		sameShape(a.left, b.left) && sameShape(a.right, b.right)
}

// CheckTree verifies what must hold for the nodes of every published map,
// whatever their priorities are.
func CheckTree[K Key[K], V comparable](m Map[K, V]) error {
	n, err := m.root.check(nil, nil)
	if err == nil && n != m.len {
		err = fmt.Errorf("length is %d, want %d as there are so many nodes", m.len, n)
	}
	return err
}

// check verifies a subtree whose keys must lie between two others (nil: no
// limit), and counts its nodes.
func (n *node[K, V]) check(above, below *K) (int, error) {
	if n == nil {
		return 0, nil
	}
	k := n.entry.key
	switch {
	case n.draft:
		return 0, fmt.Errorf("key %v: the node is a draft", k)
	case above != nil && k.Compare(*above) <= 0, below != nil && k.Compare(*below) >= 0:
		return 0, fmt.Errorf("key %v is out of order", k)
	case n.left != nil && n.left.prio >= n.prio, n.right != nil && n.right.prio > n.prio:
		return 0, fmt.Errorf("key %v: a child should be above it", k)
	}
	l, err := n.left.check(above, &k)
	if err != nil {
		return 0, err
	}
	r, err := n.right.check(&k, below)
	return l + 1 + r, err
}

// CheckPriorities verifies that every priority is the hash of its key.
func CheckPriorities[K Key[K], V comparable](m Map[K, V]) error {
	return m.root.checkPriorities(m.seed)
}

func (n *node[K, V]) checkPriorities(seed maphash.Seed) error {
	for ; n != nil; n = n.right {
		if want := uint32(maphash.Comparable(seed, n.entry.key)); n.prio != want {
			return fmt.Errorf("key %v: priority is %#x, want %#x", n.entry.key, n.prio, want)
		}
		if err := n.left.checkPriorities(seed); err != nil {
			return err
		}
	}
	return nil
}
