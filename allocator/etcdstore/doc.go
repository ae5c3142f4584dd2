// Package etcdstore keeps claims in etcd, beside a map of the taken keys in the form of
// Kubernetes. It is a module of its own, so that other importers do not need the
// packages of etcd's client.
//
// # Keys in etcd
//
//	PREFIX/maps/10.96.0.0/16    a RangeAllocation object: one bit for each key of the range
//	PREFIX/claims/10.96.0.10    owner, token, time and end of one claim, as JSON
//
// Both change in one transaction, whose preconditions are the revisions that the store
// has read. Each range has a map; a key outside of all ranges cannot be allocated. Of an
// IPv6 range the store allocates the first 65,536 addresses, which a map covers.
//
// [Store.Create], which package repair calls, or [Store.Import] make the map. Until then
// every operation fails with [allocator.ErrNoMap], so that losing a map does not free its
// keys.
//
// # Combining
//
// Commits of one process that begin while a transaction is in flight share the next one,
// as many as fit. So 64 callers need hardly more transactions than one. If a transaction
// fails because of another process, the store reads the claims and tries again; only a
// commit whose own claims have changed is a conflict. A commit of more than 120 keys is
// made in parts, which are undone if a later one fails.
//
// # Unreadable claims
//
// A claim that is not JSON, or has no owner, keeps its key, for an owner
// "unreadable:PATH" that errors and lists name. All other keys work as usual. A repair
// reports the claim if its key is used, and does not free it. Write the claim again or,
// if no object uses the key, release it:
//
//	pool.Release(ctx, allocator.Claim{Key: key, Owner: "unreadable:PREFIX/claims/10.96.0.10"})
//
// Deleting the claim by hand leaves the bit in the map, and the key to [Imported].
//
// The store ignores paths below PREFIX/claims that do not name a key: a taken key has a
// bit in a map. While a map is unreadable, every operation fails.
//
// # Importing
//
// [Store.Import] stores the map of a cluster unchanged. Its keys belong to the owner
// [Imported] until a repair, or another change, gives them to another owner. Do not share a
// map that an API server still uses: its repair frees the keys that no Service has.
//
// # Versions
//
// The module is released together with github.com/vipkit/vipkit: for each tag vX.Y.Z of
// the repository there is a tag allocator/etcdstore/vX.Y.Z, whose go.mod requires that
// version. The replacement in go.work, which holds only within the repository, lets both
// change in one commit; in go.mod it would hide a requirement of a version that does not exist.
package etcdstore
