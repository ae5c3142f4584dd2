// Package pmap is a persistent ordered map: a value that never changes, whose
// successors share with it all that stays the same, and which can say in which
// keys it differs from another one at a cost that follows the number of
// differences, not the number of keys.
//
// # Why
//
// A proxy keeps a picture of all service ports, changes a few of them at a
// time, and hands each new picture to consumers of different speed. With
// immutable pictures every consumer remembers the last one that it dealt with
// and asks for the differences when it is ready: no queue of events that can
// overflow or lose its order, no lock around readers, and "go back to what is
// known to be in place" is an assignment. That is affordable only if a change
// does not copy the map and a comparison does not walk it.
//
// # Shape
//
// The map is a treap: a search tree by key that is at the same time a heap by
// priority. The priority is a hash of the key, so the shape of the tree follows
// from its contents alone and not from the order of the changes that led to
// them. Wherever two maps of one origin agree, they therefore hang the same
// subtrees at the same place, and [Map.Diff] passes over a subtree that both
// share by comparing two pointers.
//
// The hash has a random seed for each [New]: keys can be chosen by whoever
// may create a Service, and with known priorities they could be chosen so that
// the tree becomes a list. Maps of different origin share nothing; Diff is
// right for them too, but walks both.
//
// A node holds a pointer to its key and value instead of the two themselves.
// A change copies the nodes between the root and the key (about 1.4·log2 n of
// them), and with keys of 80 bytes that is a third of the memory to write; and
// in Diff one pointer comparison tells that a key and its value are the same,
// without looking at either.
//
// Nodes hold neither a size nor an owner. The number of keys is kept in the
// Map. A node is marked as a draft as long as it is visible to one [Edit]
// alone, and [Edit.Map] takes the marks off: a published node never points to a
// draft, so all drafts hang together under the root, and taking the marks off
// costs no more than making the nodes did.
package pmap
