// Package allocator hands out virtual IP addresses and node ports, and never one
// of them twice.
//
// It does not depend on any dataplane: it needs the standard library only.
//
// # Ranges
//
// A [Range] is one prefix or one row of ports in the memory of one process. Its
// first addresses are a band that is kept, as far as possible, for those who ask
// for a particular one: what is allocated dynamically comes from the rest until that
// is exhausted. How large the band is, [IPBand] and [PortBand] say; the rule is
// that of Kubernetes. How long it takes to choose and to free a key does not depend on
// how full the range is, up to 16 million keys. Larger ranges keep no map of what is
// free; they are as quick until they are nearly full, as no range of that size is.
//
// # Pools
//
// A [Pool] has several ranges, of both families and of ports, and keeps what it
// gives in a [Store] that other pools may use at the same time. One request can ask
// for addresses of both families and any number of ports: it gets all of them in one
// change, or none. Ranges may overlap, and may be draining: then nothing new comes
// from them.
//
// # From reservation to release
//
// An address is needed before the object that owns it can be stored, and either step
// can be the last one before a crash. So there are three:
//
//  1. [Pool.Reserve] takes the keys. The store notes when the reservation ends.
//  2. The caller stores the object.
//  3. [Pool.Bind] makes the reservation last.
//
// If the process dies in between, the keys become free when the reservation ends,
// whatever is restarted meanwhile. A reservation that has ended cannot be bound once
// somebody else has its key: Bind fails, and the object must be given up. After the
// object is deleted, [Pool.Release] frees the keys. It names the allocation and not
// only the address; so one that comes late frees nothing that has a new owner.
//
// # What holds whatever fails
//
//   - No two owners ever have one key bound. Every write has a precondition that
//     the store checks; what a pool remembers decides nothing.
//   - A key is free, reserved for no longer than the TTL, or bound. A bound key whose
//     owner is gone is found by package repair. A reservation that was made by a clock that
//     was ahead ends, too, once a pool that runs has known it for its TTL.
//   - If it is not known whether a write was made, the store is asked. If it does
//     not answer, the error is [ErrUnknown], and the pool does not hand out the key before
//     it has the answer.
//   - No lock is held while the store is asked.
//
// # Stores
//
// [Memory] is a store in the memory of one process, package filestore one in a file, and
// package kubestore keeps claims as objects of a Kubernetes API server. Package etcdstore,
// a module of its own, keeps them in etcd. What a store must do is little: read
// everything, read some keys, change some keys if they are as expected, and tell what
// has changed. A revision of the whole and the resource version of an object can both
// serve as the version of a claim.
package allocator
