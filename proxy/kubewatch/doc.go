// Package kubewatch hands Services, EndpointSlices, the Node and ServiceCIDRs of an API
// server to a tracker, and goes on doing so.
//
// It is the only package for service proxies that needs k8s.io/client-go. A program
// that watches these objects already hands them over by itself and does not need it.
//
// # What is watched
//
// The API server selects: Services with a ClusterIP that no other service proxy is
// named for (see [Source].ProxyName), EndpointSlices that do not belong to headless
// Services, and the one Node. A Service that is labelled later for another proxy is a
// deletion here. A client of [NewClient] transfers all of it as protobuf.
//
// The client must be allowed to list and watch services and nodes, endpointslices of the
// group discovery.k8s.io, and servicecidrs of networking.k8s.io. Where it may not see the
// last or they do not exist, everything else works, and service ranges are not known.
//
// # No cache
//
// Objects are handed over as they come in and are not kept: the tracker has what it
// needs of them. All that stays here is their names, so that whatever was deleted
// while the connection was down is told after it. Hence nothing is handed over at
// regular intervals either: no cache is there to do it from, and a handler that
// has been called has the object. While the API server streams its first answer,
// objects wait until it is complete, without the parts that nobody needs.
//
// # What is not watched
//
// Services of other proxies have addresses in the same ranges. Who removes what a
// predecessor left, as package conntrack does with flows, must not touch theirs, and
// asks [Source.Foreign].
//
// # When the API server is away
//
// Everything stays as it is. The watches are tried again with growing intervals of up
// to a minute and go on where they ended. Where the API server has
// forgotten that point, everything is listed anew: what is as it was is no change to
// a tracker, and what is gone is deleted. Errors go to [Source].Report.
package kubewatch
