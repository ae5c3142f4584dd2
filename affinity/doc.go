// Package affinity is the session affinity of Services: whether all connections of a
// client address use one endpoint, and for how long after the last connection
// ([Config]).
//
// A [Table] has the endpoint of each client, for dataplanes in user space.
package affinity
