// Package endpoints decides which endpoints of a Service a node may use.
//
// # From slices to endpoints
//
// A [Cache] receives EndpointSlices of the API and has, for every port of every
// Service, the list of its endpoints as one node sees them: the slices merged,
// addresses parsed, conditions with their defaults filled in, topology hints
// resolved. It ignores parts that it cannot use, and reports each as [FieldError].
// The cost of an event depends on the size of the slice; only copying the list
// depends on the size of the Service, and nothing on the number of Services.
//
// # From endpoints to pools
//
// [Select] is a pure function from such a list and the traffic policies of a
// Service port to the endpoints that a packet may go to; [Cache.Select] is the same for a list
// of a Cache:
//
//   - The Cluster policy selects the ready endpoints. If all of them have hints for nodes
//     and some hint names this node, it selects only those with such a hint; otherwise the
//     same applies to zones. So hints never leave a node without endpoints.
//   - The Local policy selects the ready endpoints of this node, whatever their hints.
//   - Without a ready endpoint, a policy selects those that terminate and still serve. For
//     the Local policy [LocalFallback] can choose something else.
package endpoints
