// Package backends makes a [proxy.Backend] of two small parts: a pure function
// that renders the kernel objects that a service port needs, and a target that lists
// and commits such objects. What else a target can do, it says in [TargetAbilities].
//
// The package does the rest, once for all backends: the difference between the
// objects of old and new snapshots, objects that several service ports share, the
// order of creation and removal, adoption of the objects of an earlier process,
// and the isolation of single service ports that the kernel refuses, so that one
// bad Service never stops the others.
//
// # Full, partial, retry, repair
//
// All use the same code. [proxy.Backend.Apply] renders the service ports that differ
// between old and new, and commits the difference of the two renderings. From
// the zero snapshot the difference is that to the objects that [Target.List] yields.
// Time, memory and kernel operations depend on the size of the change.
//
// # State
//
// A backend keeps no state that it can derive from the old snapshot, except the number
// of owners of shared objects.
package backends
