// Package peer has tests of packages of this repository with a real API server and other
// packages of Kubernetes.
//
// It is a module of its own, so that importers of the library do not need
// k8s.io/kubernetes. No package imports it; the tests of the library do not need it. The
// tests run on Linux only:
//
//	make peer
package peer
