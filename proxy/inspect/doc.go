// Package inspect serves a debug page: what a dataplane holds, and why a packet goes
// where it goes.
//
// A [Page] lists service ports with their frontends and endpoints, the problems of API objects,
// what the dataplane keeps only in part, and the last sync; it shows one Service with the reasons
// why each endpoint gets traffic or not; and it explains the [proxy.Verdict] about a packet. It
// has no script, and loads nothing from elsewhere. Its data is not public: the program that
// serves it must restrict access, for example by [LocalOnly].
//
// The parameters of the query are:
//
//	filter       a part of the name of a service port in any case, or of address:port of a
//	             frontend or an endpoint
//	page         the number of the page of the list, from 1
//	service      namespace/name: the page of one Service
//	destination  where a packet goes: address:port, or namespace/name:port of a Service, such as
//	             default/web:http or default/web:80
//	source       where it comes from: an address, with a port or without; the default is the node
//	interface    by which it arrives; without one it starts on the node
//	protocol     TCP (default), UDP or SCTP
//
// # JSON
//
// A client that accepts application/json gets the same as one object:
//
//	curl -H 'Accept: application/json' 'ADDRESS/PATH?destination=10.96.0.1:443'
//
//	Title         the title of the page
//	Generation    of the [proxy.Snapshot]; 0 while nothing is known
//	Node          the [proxy.Node]; null while nothing is known
//	Syncs         the syncs: Last, Count, Failed, Repairs, Error, Errored, Refused,
//	              Held, Verified, Watching (the backend waits for changes of other programs;
//	              otherwise a resync finds them), Resync (the time between two)
//	Packet        the [proxy.Packet] of the query, complete; null without one
//	Verdict       the [proxy.Verdict] about it
//	Error         what is wrong with the query; then the status is 400
//	Problems      texts, at most 200, first about the node
//	Limits        texts, at most 200: what Services request and is kept only in part
//	Refused       service ports that the last sync could not program, at most 200: Name and Error
//	ServicePorts  those on the page, as [proxy.ServicePort]
//	Page, Pages   the number of the page, and of all
//	Matches       the number of service ports that match the filter
//	Total         the number of all service ports
//	Service       with the parameter service: Name, Ports, Problems, Limits; a port also has
//	              Refused, and All: each endpoint with the fields of its [endpoints.Explanation]
//
// Values of these types have the names of their Go fields, and durations are nanoseconds.
package inspect
