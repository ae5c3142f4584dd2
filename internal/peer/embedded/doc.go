// Package embedded tests agents of examples/kubeproxy inside of a program that is not kubeproxy, with a real API server: two
// agents with different identities in one process, as a distribution of Kubernetes runs one. It works on Linux only.
package embedded
