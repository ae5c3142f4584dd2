// Package snapshots builds what trackers publish, for tests: service ports, endpoints, nodes and
// snapshots. It has the notation of package objects for endpoints, which have addresses with
// ports here and are ready without a letter:
//
//	10.0.0.1:8080
//	10.0.0.2:8080 T @node-1 local
//
// Frontends are addresses with ports, separated by spaces. The address of a node port is missing
// or unspecified. External IPs begin with ext= and load balancer IPs with lb=.
//
//	10.96.0.10:53 :30053 lb=192.0.2.200:53
package snapshots
