// Package kubewatch watches Services, EndpointSlices, the Node and ServiceCIDRs of an
// API server, and passes them to a tracker.
//
// It is the only package for service proxies that needs k8s.io/client-go. A program
// that watches these objects already passes them to a tracker itself; one that has shared
// informers of them adds the event handlers of [Events].
//
// # What is watched
//
// The API server selects: Services with a ClusterIP, EndpointSlices that do not belong to headless
// Services, and the one Node. Of the Services, those without a label for another service proxy
// (see [Watcher].ProxyName) are passed on. A Service that is labelled later for another proxy is
// deleted from the tracker. A client of [NewClient] transfers all of it as protobuf.
//
// The client must be allowed to list and watch services and nodes, endpointslices of the
// group discovery.k8s.io, and servicecidrs of networking.k8s.io. If it may not list the
// last, or they do not exist, everything else of a [Watcher] works, and the service ranges
// are unknown; a program with [Events] must then not wait for them, see [Events.ServiceCIDRs].
//
// # No cache
//
// A Watcher passes objects on as it receives them and does not keep them. It keeps only
// their names, to report deletions that it missed while the connection was down, and the ClusterIPs
// of Services for other proxies. So there is no periodic resync either. While the API server streams its first list, objects wait
// until the list is complete, without the fields that no service proxy needs.
//
// # Services of other proxies
//
// They have addresses in the same ranges. A program that removes what a predecessor
// left, as package conntrack does with flows, must not touch theirs, and calls
// [Watcher.Foreign] or [Events.Foreign].
//
// # When the API server is unreachable
//
// The tracker keeps its objects. A Watcher retries the watches with growing intervals of
// up to four seconds, and they continue where they ended. If the API server cannot continue
// there, the Watcher lists everything again: for a tracker an unchanged object is no
// change; missing ones are deleted. The first error goes to [Watcher].Report; [Watcher].Logger
// says when the API server answers again. If the API server says that it is busy, intervals grow up to a minute.
package kubewatch
