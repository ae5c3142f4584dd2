// Package pmap is a persistent ordered map: an immutable value, which shares all
// unchanged nodes with the maps that are derived from it. The cost of comparing two
// maps depends on the number of differences, not on the number of keys.
//
// # Why
//
// A proxy keeps a snapshot of all service ports, changes a few of them at a time,
// and hands each new snapshot to consumers of different speed. Every consumer keeps
// the last snapshot that it handled and computes the differences when it is ready: no
// queue of events overflows or loses its order, readers need no lock, and a rollback
// is an assignment. That is affordable only if a change does not copy the map and a
// comparison does not walk it.
//
// # Shape
//
// The map is a treap: a search tree by key that is at the same time a heap by
// priority. The priority is a hash of the key, so the shape of the tree depends on its
// contents alone and not on the order of the changes. Two maps of one origin therefore
// share the subtrees in which they agree, and [Map.Diff] skips a shared subtree after
// comparing two pointers.
//
// Each [New] chooses a random seed for the hash: users who create Services choose the
// keys, and with known priorities they could choose keys that degrade the tree to a
// list. Maps of different origin share nothing; Diff is correct for them too, but
// walks both.
//
// A node holds a pointer to its key and value, not the two themselves. A change
// copies the nodes between the root and the key (about 1.4·log2 n of them); with
// keys of 80 bytes, the pointer reduces the memory for that to a third. In Diff one
// pointer comparison shows that a key and its value are the same.
//
// Nodes hold neither a size nor an owner; the Map has the number of keys. A node
// is a draft as long as only one [Edit] can reach it. [Edit.Map] publishes the drafts:
// a published node never points to a draft, so all drafts are reachable from the root
// through drafts, and publishing them costs no more than creating them did.
package pmap
