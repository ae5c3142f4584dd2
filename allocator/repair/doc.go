// Package repair compares the claims of a store with the objects that own the keys,
// and repairs the store.
//
// The objects that own addresses and ports, such as Services, are authoritative. The
// store can differ from them after a crash, after a restore from an old backup, or
// after an edit by hand. [Reconcile] makes one pass; a [Controller] makes passes at
// intervals. A pass finds keys that are:
//
//   - used and not held, so that another owner could get them at any time
//   - held and not used
//   - held for one owner and used by another
//   - used by several owners
//   - used or held outside of all ranges, unreadable, or not spelled canonically
//
// The precondition of every change is that the claim is unchanged since it was read, and
// a pass takes no claim from its owner that is younger than a grace period. So a pass
// can run at any time, beside allocators and other passes. A pass also does not take a
// claim that is dated in the future, whose age is unknown, until a [Controller] has seen
// it for the grace period.
//
// A key that is freed wrongly may get another owner at once; one that is kept wrongly
// only wastes an address. So a pass refuses a list without owners, and one that would
// free half of all keys, unless [Options].Force allows that; and it only reports keys
// outside of all ranges.
package repair
