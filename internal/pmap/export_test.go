package pmap

import (
	"fmt"
	"hash/maphash"
)

// Compared counts the pairs of different subtrees that a Diff of two maps compares.
func Compared[K Key[K], V comparable](old, now Map[K, V]) int {
	d := differ[K, V]{yield: func(Change[K, V]) bool { return true }}
	d.run(old.root, now.root, nil, nil)
	return d.pairs
}

// With returns a map in which k has the value v.
func (m Map[K, V]) With(k K, v V) Map[K, V] {
	e := Edit[K, V]{m: m}
	e.Set(k, v)
	return e.Map()
}

// Without returns a map that lacks k.
func (m Map[K, V]) Without(k K) Map[K, V] {
	e := Edit[K, V]{m: m}
	e.Delete(k)
	return e.Map()
}

// SetWithPriority sets a key with a priority that is not its hash.
func (e *Edit[K, V]) SetWithPriority(k K, v V, prio uint32) { e.set(k, v, prio) }

// Height returns the number of nodes on the longest path from the root.
func Height[K Key[K], V comparable](m Map[K, V]) int { return m.root.height() }

func (n *node[K, V]) height() int {
	if n == nil {
		return 0
	}
	return 1 + max(n.left.height(), n.right.height())
}

// SameShape reports whether two trees have the same keys in the same positions.
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
		err = fmt.Errorf("length: got %d, want %d, the number of nodes", m.len, n)
	}
	return err
}

// check verifies a subtree whose keys must be between above and below (nil: no
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
		return 0, fmt.Errorf("key %v: a child has a higher priority", k)
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
			return fmt.Errorf("key %v: priority: got %#x, want %#x", n.entry.key, n.prio, want)
		}
		if err := n.left.checkPriorities(seed); err != nil {
			return err
		}
	}
	return nil
}
