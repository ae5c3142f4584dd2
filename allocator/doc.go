// Package allocator allocates virtual IP addresses and node ports, each to one owner
// at most.
//
// It does not depend on any dataplane: it needs the standard library only.
//
// # Pools
//
// A [Pool] has several ranges, of both families and of ports, and keeps its
// allocations in a [Store] that other pools may use at the same time. One call can
// request addresses of both families and any number of ports: it gets all of them in
// one change, or none. Ranges may overlap. Nothing new is allocated from a range that
// is draining.
//
// The first keys of a range are a band for requests that name a key: dynamic allocation takes the
// other keys until they are exhausted. The rule is that of Kubernetes; see [Config]. The time to
// choose and to free a key grows with the logarithm of the size of the range, and does not depend
// on how full it is. A [Range] numbers the keys of a range.
//
// # From reservation to release
//
// A caller needs an address before it can store the object that owns it, and may crash
// after either step. So there are three steps:
//
//  1. [Pool.Reserve] reserves the keys. The store has the time when the reservation ends.
//  2. The caller stores the object.
//  3. [Pool.Bind] makes the reservation last.
//
// If the process ends in between, the keys become free when the reservation ends, no
// matter what restarts meanwhile. A reservation that has ended cannot be bound once
// its key has another owner: Bind fails, and the caller must delete the object. After
// the object is deleted, [Pool.Release] frees the keys. A claim names the allocation and
// not only the address; so a late Release does not free a key that has a new owner.
//
// # Guarantees
//
//   - No two owners ever have one key bound. Every write has a precondition that
//     the store checks; the memory of a pool decides nothing.
//   - A key is free, reserved for no longer than the TTL, or bound. Package repair finds
//     a bound key whose owner no longer exists. A reservation that was made by a clock that
//     was ahead ends once a running pool has seen it for its TTL.
//   - If the outcome of a write is unknown, the pool reads the store. If the store does
//     not reply, the error is [ErrUnknown], and the pool does not allocate the key
//     before it has read the store.
//   - A pool holds no lock while it waits for the store.
//
// # Stores
//
// [Memory] is a store in the memory of one process, package filestore one in a file, and
// package kubestore keeps claims as objects of a Kubernetes API server. Package etcdstore,
// a module of its own, keeps them in etcd. A store reads everything, reads some keys,
// changes some keys if their versions are as expected, and watches changes. A revision
// of the whole store and the resource version of an object can both serve as the
// version of a claim. Package storetest tests a store.
package allocator
