// Package endpoints decides which endpoints of a Service a node may use.
//
// # From slices to endpoints
//
// A [Cache] takes EndpointSlices as they come from the API and keeps, for every
// port of every Service, the list of its endpoints as one node sees them: the
// slices merged, addresses parsed, conditions with their defaults filled in,
// topology hints resolved. What it cannot use it leaves out and reports as
// [FieldError]. The cost of an event follows the size of the slice, and only the
// bare copying of memory that of the Service; the other Services do not matter.
//
// # From endpoints to pools
//
// [Select] is a pure function from such a list and the traffic policies of a
// Service port to the endpoints that a packet may go to:
//
//   - The Cluster policy takes the ready endpoints. Where all of them carry hints
//     and some hint names this node, only these are taken; failing that, the same
//     goes for this zone. Hints can therefore never leave a node without endpoints.
//   - The Local policy takes the ready endpoints of this node, whatever the hints say.
//   - Where a policy finds nothing that is ready, it takes what still serves while
//     it terminates. For the Local policy [LocalFallback] can choose otherwise.
package endpoints
