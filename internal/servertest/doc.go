// Package servertest runs servers for tests, on loopback and as long as a test lasts:
// any program, and etcd in particular.
//
// On other systems than Linux there are only [FreeAddress] and [FreePort].
package servertest
