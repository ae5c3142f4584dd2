// Package proxy turns Services and EndpointSlices into what one node must
// program, and drives a dataplane to it.
//
//	API objects ──▶ ServiceChangeTracker ──▶ Snapshot ──▶ Runner ──▶ Backend.Apply(old, new)
//	                                             └──────▶ Route: what must happen to this packet, and why
//
// # The model
//
// A [ServicePort] is one port of one Service in one IP family, resolved for this
// node: its [Frontend] addresses, for each of them a [TrafficRoute] for traffic
// from inside and one for traffic from outside, and the pools of endpoints that
// routes choose from. So a backend implements no policy, and two backends cannot
// disagree about one.
//
// A [Snapshot] has all service ports at one moment, in name order, and is immutable.
// [Snapshot.Changes] compares two of them at the cost of their differences. A
// consumer keeps the last snapshot that it achieved and needs no other state: a
// change that it missed, could not make or got twice is in the next comparison.
//
// # The tracker
//
// A [ServiceChangeTracker] makes snapshots of API objects, which may arrive from any
// source and in any order. The cost of an event depends on the size of the object,
// not of the cluster. Objects may be wrong: what cannot be honoured is denied rather
// than allowed, is named in [Snapshot.Problems], and affects nothing else. Where two
// Services claim one address and port, a ClusterIP wins over a load balancer's
// address and that over an external IP, then the older Service, then the first by
// name. A Service without creation timestamp, from a file, takes no address from an
// owner and loses none to a later one: the first one wins, and after it is removed one
// of the others. An external IP that is an address of the node itself has precedence
// over node ports and the node's own programs: where users who write Services are not
// trusted with that, set TrackerOptions.IgnoreExternalIPs.
//
// TrackerOptions.Accept selects the Services to proxy. The tracker calls it with its
// lock held, so it must not call the tracker.
//
// # The specification
//
// [Route] returns what must happen to the first packet of a connection. The
// conformance suite of package backendtest holds every backend to it. Where the
// proxies of Kubernetes differ from each other, Route decides: a frontend without
// endpoints anywhere rejects, also for traffic of the node itself; a Local policy
// without local endpoints drops; source ranges come before both; ports that a
// ClusterIP does not have are rejected, and packets to unused addresses of known
// service ranges dropped; node ports, also without endpoints, exist at the chosen node
// addresses only; a connection from a client to itself (hairpin) is masqueraded,
// wherever the endpoint is.
//
// # The runner
//
// A [Runner] applies the newest snapshot, coalesces changes during an Apply, retries
// failures at growing intervals, and applies from the zero Snapshot after the state
// of the dataplane was lost. It ends with its context and leaves the dataplane as it is.
//
// A dataplane decides about the first packet of a flow. A Cleaner of package conntrack in
// Runner.FlowCleaner removes UDP flows to removed endpoints. Packages health and prommetrics
// have Observers for a Runner, which report its state.
package proxy
