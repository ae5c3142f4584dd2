// Package servertest runs servers for tests, on loopback addresses, until a test ends:
// any program, and etcd in particular.
//
// On systems other than Linux, it has only [FreeAddress] and [FreePort].
package servertest
