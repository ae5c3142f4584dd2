// Package servertest runs servers for tests, on loopback and as long as a test lasts:
// any program, and etcd in particular.
//
// It works on Linux only.
package servertest
