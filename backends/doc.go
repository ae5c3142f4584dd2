// Package backends makes a [proxy.Backend] out of two small parts: a pure
// function that says which kernel objects a service port needs, and a kernel
// edge with two methods that lists and commits such objects.
//
// What stands between is done here, once for all backends: the difference
// between what old and new snapshots need, objects that several service ports
// share, the order of creation and removal, adoption of what an earlier process
// left behind, and the isolation of single service ports that the kernel
// refuses, so that one bad Service never stops the others.
//
// # Full, partial, retry, repair
//
// All are one path. [proxy.Backend.Apply] renders the service ports that differ
// between old and new, and commits the difference of the two renderings. From
// the zero snapshot the difference is taken against what [Target.List] finds.
// Work, memory and kernel operations follow the size of the change.
//
// # State
//
// Nothing is remembered that can be derived from the old snapshot, but for the
// number of owners of shared objects.
package backends
