// Package proxy turns Services and EndpointSlices into what one node must
// program, and drives a dataplane to it.
//
//	API objects ──▶ ServiceChangeTracker ──▶ Snapshot ──▶ Runner ──▶ Backend.Apply(old, new)
//	                                             └──────▶ Route: what must become of this packet, and why
//
// # The model
//
// A [ServicePort] is one port of one Service in one IP family, with everything
// resolved that follows for this node: its [Frontend] addresses, for each of
// them a [TrafficRoute] for traffic from the cluster's inside and one for
// traffic from outside, and the pools of endpoints that routes choose from. So a
// backend implements no policy, and two backends cannot disagree about one.
//
// A [Snapshot] is an immutable, ordered picture of all service ports.
// [Snapshot.Changes] compares two of them at the cost of their differences. A
// consumer remembers the last snapshot that it achieved and needs no other
// state: a change that was missed, failed or came twice is in the next
// comparison.
//
// # The tracker
//
// A [ServiceChangeTracker] takes API objects from any source and in any order,
// and folds them. An event costs what the object holds, not what the cluster
// holds. Objects may be wrong: what cannot be honoured is denied rather than
// allowed, is named in [Snapshot.Problems], and harms nothing else. Where two
// Services claim one address and port, a ClusterIP wins over a load balancer's
// address and that over an external IP, then the older Service, then the one that
// comes first by name. A Service without creation timestamp, from a file, takes no
// address from one that has it, and keeps its own: there the first one wins, and when
// it goes, one of those that wait. An external IP that is an address of the node itself serves
// before node ports and the node's own programs do: where users who write Services
// are not trusted with that, set TrackerOptions.IgnoreExternalIPs.
//
// Which Services count, TrackerOptions.Accept decides; it is called under the
// tracker's lock, so it must not call the tracker.
//
// # The specification
//
// [Route] says what must become of the first packet of a connection. It is what
// the conformance suite of package backendtest holds every backend to. Where the
// proxies of Kubernetes differ from each other, it decides: a frontend without
// endpoints anywhere rejects, also for traffic of the node itself; a Local policy
// without local endpoints drops; source ranges come before both; ports that a
// ClusterIP does not have are rejected, and unused addresses of known service
// ranges dropped; node ports, also without endpoints, concern the chosen node
// addresses only; a connection that goes back to where it came from is
// masqueraded, wherever the endpoint is.
//
// # The runner
//
// A [Runner] applies the newest snapshot, coalesces what comes meanwhile, retries
// what failed with growing intervals, and begins from nothing when the dataplane
// was lost. It ends with its context and leaves the dataplane as it is.
//
// A dataplane decides about the first packet of a flow. So that flows of UDP do not go on to
// endpoints that are gone, wrap the Backend with a Cleaner of package conntrack. Packages
// health and prommetrics follow a Runner and say how it fares.
package proxy
