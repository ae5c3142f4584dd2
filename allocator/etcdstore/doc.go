// Package etcdstore keeps claims in etcd. It is a module of its own, so that other importers
// do not need the packages of etcd's client.
//
// # Keys in etcd
//
//	PREFIX/created              says that the store was set up
//	PREFIX/claims/10.96.0.10    owner, token, time and end of one claim, as JSON
//
// A commit is one transaction, whose preconditions are the revisions of the claims.
//
// [Store.Create], which package repair calls, sets the store up. Until then every operation
// fails with [allocator.ErrNoMap]: an etcd that has lost its data frees no key.
//
// # Combining
//
// Commits of one process that begin while a transaction is in flight share the next one,
// as many as fit. So 64 callers need hardly more transactions than one. If a transaction
// fails because of another process, the store tries again without the commits whose claims have
// changed. A commit of more than 120 keys is made in parts, which are undone if a later one fails.
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
// The store ignores paths below PREFIX/claims that do not name a key.
//
// # Versions
//
// The module is released together with github.com/vipkit/vipkit: for each tag vX.Y.Z of
// the repository there is a tag allocator/etcdstore/vX.Y.Z, whose go.mod requires that
// version. The replacement in go.work, which holds only within the repository, lets both
// change in one commit; in go.mod it would hide a requirement of a version that does not exist.
package etcdstore
