// Package affinity describes session affinity as Services ask for it: whether
// the connections of one client address go to one endpoint, and for how long
// after its last connection that is remembered.
package affinity
