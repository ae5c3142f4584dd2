// Package kubestore keeps claims as the IPAddress objects of a Kubernetes API server,
// and reads its ranges from ServiceCIDR objects.
//
// # Side by side with Kubernetes
//
// The API server's own allocator writes the same objects: the name is the address, and
// only one object can have it. So both can allocate addresses of the same ranges at the
// same time, and none twice. The label ipaddress.kubernetes.io/managed-by says which
// program manages an object. This store counts the objects of other programs as taken and
// never changes them; the repair loop of the API server does the same with the objects of
// this store.
//
// # Owners
//
// The owner of an IPAddress is its parentRef. As an [allocator.Owner] it is
//
//	RESOURCE/NAME                  nodes/node-1
//	RESOURCE/NAMESPACE/NAME        services/default/web
//	GROUP/RESOURCE/NAMESPACE/NAME  gateway.networking.k8s.io/gateways/default/entry
//	NAME                           for the resource "owners", which Kubernetes does not have
//
// where NAMESPACE is empty for a cluster-wide object with a group. The parts contain no
// percent sign. Other owners are invalid, and so are ports, which have no such objects.
//
// # Objects
//
// Token, time and end of a reservation are annotations, so a reservation ends even if
// its process has ended. The version of a claim is its resourceVersion. Every change of
// an object has it as a precondition. The owner of an object cannot be changed; so the
// store gives an address to another owner by deleting the object and creating another,
// and in between a third owner can take it.
//
// Several keys are not written in one step, but by as many requests, eight at a time. If
// one of them fails, the store undoes the others.
//
// # Permissions
//
// The store gets, lists, watches, creates, updates and deletes ipaddresses, and lists
// and watches servicecidrs, of the group networking.k8s.io. The versions of both are
// v1: Kubernetes 1.33 or newer.
package kubestore
