// Package hcntest simulates the Host Compute Network service of Windows, for tests of whatever
// uses package hcn on any operating system.
//
// A [Sim] keeps networks, endpoints and load balancers in memory, and refuses what HNS refuses: a
// load balancer without endpoints, or of endpoints that do not exist; a second one for an address,
// protocol and port; what its version cannot do. It counts calls, notifies, and fails as a test tells
// it: [Sim.SetFault].
//
// It models what is known of HNS from its documentation and from reports of its users. It was not
// compared with a Windows host. Where HNS is not known to refuse something that leaves it in a bad
// state, such as to delete an endpoint that a load balancer uses, the Sim does it and records a
// violation: [Sim.Violations].
package hcntest
