// Package affinity is session affinity as Services ask for it: whether the
// connections of one client address go to one endpoint, and for how long after
// its last connection that is remembered ([Config]).
//
// A [Table] does the remembering, for dataplanes that have no kernel to do it
// for them.
package affinity
