// Package repair compares what a store of claims says with what the owners say,
// and mends the store.
//
// The objects that own addresses and ports, such as Services, are the truth. The
// store can differ from them after a crash, after a restore from an old backup, or
// because somebody has edited one of both. [Reconcile] makes one pass; a
// [Controller] makes one at intervals. Each finds:
//
//   - what is used and not held, which another owner could be given any time
//   - what is held and not used
//   - what is held for one owner and used by another
//   - what several use
//   - what is used or held outside of all ranges, cannot be read, or is not spelled
//     canonically
//
// Every change is made on the condition that the claim still is as it was seen, and
// nothing is taken away from a claim that is younger than a grace period. So a pass
// can run at any time, beside allocators and other passes. Nor is a claim from the future
// taken away, whose age nobody knows, before a [Controller] has seen it for as long.
//
// What is freed wrongly is given to another owner at once, and what is kept wrongly
// only wastes an address. So a pass does not believe a list without owners, nor one
// after which half of all would be free, unless its options say so; and what lies out
// of all ranges it only reports.
package repair
