// Package backendtest holds backends to the specification of a service proxy on
// a real kernel: it builds a small cluster out of network namespaces, sends
// real packets, and compares what becomes of them with [proxy.Route].
//
// # The testbed
//
// The node, on which the backend works, has pods of its own, a way to another
// node with pods, to clients outside of the cluster, and to a gateway that owns
// all virtual addresses. Servers everywhere say who they are, and at which
// address they see their client. So a test knows what became of each packet: who
// answered and whether the client was masqueraded, that it was refused (and
// how), that it was dropped, or that it left the node as it had come, in which
// case the gateway answers.
//
// Only Linux can run it, as root or where users may have namespaces.
package backendtest
