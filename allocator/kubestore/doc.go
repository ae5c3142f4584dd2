// Package kubestore keeps claims as the IPAddress objects of a Kubernetes API server,
// and gives the ranges that its ServiceCIDR objects describe.
//
// # Side by side with Kubernetes
//
// The API server's own allocator writes the same objects: the name is the address, and
// only one object can have it. So both can hand out addresses of the same ranges
// at the same time, and neither gives what the other has given. A label,
// ipaddress.kubernetes.io/managed-by, says whose object it is. This store counts what
// others manage as taken and never changes it; the repair loop of the API server does
// likewise with what this store manages.
//
// # Owners
//
// The owner of an IPAddress is its parentRef. As an [allocator.Owner] it is
//
//	RESOURCE/NAME                  nodes/node-1
//	RESOURCE/NAMESPACE/NAME        services/default/web
//	GROUP/RESOURCE/NAMESPACE/NAME  gateway.networking.k8s.io/gateways/default/door
//	NAME                           for the resource "owners", which Kubernetes does not have
//
// where NAMESPACE is empty for a cluster-wide object with a group. The parts contain no
// percent sign. Other owners are refused, as are ports, of which there are no objects.
//
// # What stands where
//
// Token, time and end of a reservation are annotations, so a reservation ends whatever
// becomes of who made it. The version of a claim is its resourceVersion. Every change
// of an object has it as a precondition. An object's owner can never be changed; so to
// give an address to another owner is to delete the object and to make another, and in
// between a third one can take it.
//
// Several keys are not written in one step, but in as many requests, of which eight are
// under way at a time. If one of them fails, what the others have written is undone.
//
// # Permissions
//
// The store gets, lists, watches, creates, updates and deletes ipaddresses, and lists
// and watches servicecidrs, of the group networking.k8s.io. The versions of both are
// v1: Kubernetes 1.33 or newer.
package kubestore
