// Package peer holds tests with Kubernetes itself: a real API server on one side,
// and packages of this repository on the other.
//
// It is a module of its own, so that nobody who imports the library ever needs
// k8s.io/kubernetes. Nothing imports it; the tests of the library do not need it. They
// run on Linux only:
//
//	make peer
package peer
