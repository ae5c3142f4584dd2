package pmap

import (
	"hash/maphash"
	"iter"
)

// Key is what a map is ordered by. Compare must be a total order in which two
// keys are equal (0) exactly if they are == to each other.
type Key[K any] interface {
	comparable
	// Compare gives a negative number if the receiver comes before the
	// argument, a positive one if it comes after it, and 0 if they are equal.
	Compare(K) int
}

// Map is an immutable map, ordered by key. Values are compared with ==; they
// are meant to be small, typically pointers to what is itself immutable.
//
// The zero Map is empty and ready for use. All maps that were made from one
// call of [New] by With, Without and Edit are of one origin, and only among
// these is Diff fast; the first key set in a zero Map starts an origin too.
// Two maps that are == have the same contents (the reverse does not hold).
//
// Any number of goroutines may use a Map.
type Map[K Key[K], V comparable] struct {
	root *node[K, V]
	len  int
	seed maphash.Seed
}

// node is one place in the tree. Nodes that are reachable from a Map never
// change.
type node[K Key[K], V comparable] struct {
	entry       *entry[K, V]
	left, right *node[K, V]
	// prio is not lower than that of the children; of two nodes with the same
	// priority the one with the lower key is above the other one.
	prio uint32
	// draft says that one Edit alone can see the node and may change it. All
	// nodes above a draft are drafts.
	draft bool
}

// entry is a key and its value. It never changes; all nodes that were copied
// from one another share it.
type entry[K Key[K], V comparable] struct {
	key K
	val V
}

// New gives an empty map of a new origin.
func New[K Key[K], V comparable]() Map[K, V] {
	return Map[K, V]{seed: maphash.MakeSeed()}
}

// Len gives the number of keys.
func (m Map[K, V]) Len() int { return m.len }

// Get gives the value of a key, and whether the key is there.
func (m Map[K, V]) Get(k K) (V, bool) {
	for n := m.root; n != nil; {
		switch c := k.Compare(n.entry.key); {
		case c < 0:
			n = n.left
		case c > 0:
			n = n.right
		default:
			return n.entry.val, true
		}
	}
	var none V
	return none, false
}

// All yields the keys and their values in the order of the keys.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walk(yield) }
}

// walk yields what is in the subtree and reports whether yield wants more.
func (n *node[K, V]) walk(yield func(K, V) bool) bool {
	for ; n != nil; n = n.right {
		if !n.left.walk(yield) || !yield(n.entry.key, n.entry.val) {
			return false
		}
	}
	return true
}

// With gives a map in which k has the value v. It is the same map if k has
// that value already.
func (m Map[K, V]) With(k K, v V) Map[K, V] {
	e := Edit[K, V]{m: m, single: true}
	e.Set(k, v)
	return e.m
}

// Without gives a map that lacks k. It is the same map if it lacks k already.
func (m Map[K, V]) Without(k K) Map[K, V] {
	e := Edit[K, V]{m: m, single: true}
	e.Delete(k)
	return e.m
}
