// Package etcdstore keeps claims in etcd, beside a map of what is taken in the form that
// Kubernetes made classic. It is a module of its own, so that nobody else pays for
// the packages that etcd's client needs.
//
// # What stands in etcd
//
//	PREFIX/maps/10.96.0.0/16    a RangeAllocation object: one bit for each key of the range
//	PREFIX/claims/10.96.0.10    owner, token, time and end of one claim, as JSON
//
// Both change in one transaction, which etcd makes only if nothing that it relies on has
// changed since it was read. There is a map for each range; a key outside of all of them
// cannot be allocated. An IPv6 range has the 65,536 addresses that a map covers at most.
//
// A map has to be made first, by [Store.Create] (which is what package repair calls) or
// [Store.Import]. Until then every operation fails with [allocator.ErrNoMap], so that
// nothing is handed out again because a map was lost.
//
// # Combining
//
// Commits of one process that come while a transaction is under way wait for its end and
// then go together into the next one, as many as fit. So 64 callers need hardly more
// transactions than one. Those that fail because of another process are
// looked up and tried again; only a commit whose own claims have changed is in conflict.
// A commit of up to 1,000 keys is one transaction, too, if all but 50 of them are in ranges
// of at most 8,192 keys, as node ports are; larger ones are made in parts of 120 keys, and
// undone if one of these fails.
//
// # What cannot be read
//
// A claim that is no JSON, or names no owner, may be anybody's. Its key stays taken, by an
// owner "unreadable:PATH" that errors and lists name, and all other keys work as ever. A
// repair reports it where its key is used, and does not free it. It ends when somebody
// writes the claim anew, or who knows that nobody uses the key releases it:
//
//	etcdallocator ... release unreadable:PREFIX/claims/10.96.0.10 10.96.0.10
//
// To delete the claim by hand leaves the bit in the map, and the key to [Imported].
//
// What stands below PREFIX/claims and is not named as a key is passed over: what is taken
// has a bit in a map. A map that cannot be read lets no operation through, since nobody
// knows what it would say.
//
// # Importing
//
// [Store.Import] takes the map of a cluster as it is. What it says to be taken belongs
// to the owner [Imported] until a repair, or whoever knows better, gives it to another one.
// A map that an API server still uses must not be shared: its repair frees what no
// Service has.
//
// The command etcdallocator in this module shows how it is used; it has every subcommand of
// the library's example for other stores.
//
// # Versions
//
// The module is released together with github.com/vipkit/vipkit: each tag vX.Y.Z of the
// repository has a twin allocator/etcdstore/vX.Y.Z, whose go.mod requires that very version.
// The replacement in go.work, which only holds within the repository, lets both change in
// one commit; in go.mod it would keep go install from making the command.
package etcdstore
