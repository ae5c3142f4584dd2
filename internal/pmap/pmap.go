package pmap

import (
	"hash/maphash"
	"iter"
)

// Key is the type of a map's keys, by which the map is ordered. Compare must be a total
// order in which two keys are equal (0) exactly if they are == to each other.
type Key[K any] interface {
	comparable
	// Compare returns a negative number if the receiver sorts before the
	// argument, a positive one if it sorts after it, and 0 if they are equal.
	Compare(K) int
}

// Map is an immutable map, ordered by key. Values are compared with ==; they
// are meant to be small, typically pointers to immutable objects.
//
// The zero Map is empty and ready for use. All maps that were made from one call of
// [New] by Edit are of one origin, and Diff is fast only between these; the first key
// that is set in a zero Map starts an origin too. Two maps that are == have the same
// contents (the reverse does not hold).
//
// Any number of goroutines may use a Map.
type Map[K Key[K], V comparable] struct {
	root *node[K, V]
	len  int
	seed maphash.Seed
}

// node is a node of the tree. Nodes that are reachable from a Map never change.
type node[K Key[K], V comparable] struct {
	entry       *entry[K, V]
	left, right *node[K, V]
	// prio is not lower than that of the children; of two nodes with the same
	// priority the one with the lower key is above the other one.
	prio uint32
	// draft is true while only one Edit can reach the node and may change it. All
	// nodes above a draft are drafts.
	draft bool
}

// entry is a key and its value. It never changes; all nodes that were copied
// from one another share it.
type entry[K Key[K], V comparable] struct {
	key K
	val V
}

// New returns an empty map of a new origin.
func New[K Key[K], V comparable]() Map[K, V] {
	return Map[K, V]{seed: maphash.MakeSeed()}
}

// Len returns the number of keys.
func (m Map[K, V]) Len() int { return m.len }

// Get returns the value of a key, and whether the map has the key.
func (m Map[K, V]) Get(k K) (v V, ok bool) {
	if e := m.root.find(k); e != nil {
		return e.val, true
	}
	return v, false
}

// find returns the entry of a key, nil if the subtree lacks it.
func (n *node[K, V]) find(k K) *entry[K, V] {
	for n != nil {
		switch c := k.Compare(n.entry.key); {
		case c < 0:
			n = n.left
		case c > 0:
			n = n.right
		default:
			return n.entry
		}
	}
	return nil
}

// All yields the keys and their values in the order of the keys.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walk(yield) }
}

// walk yields the entries of the subtree. It returns false once yield did.
func (n *node[K, V]) walk(yield func(K, V) bool) bool {
	for ; n != nil; n = n.right {
		if !n.left.walk(yield) || !yield(n.entry.key, n.entry.val) {
			return false
		}
	}
	return true
}
