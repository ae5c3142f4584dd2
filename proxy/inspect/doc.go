// Package inspect serves a debug page: what a dataplane holds, and why a packet goes
// where it goes.
//
// The page that [Handler] serves lists service ports with their frontends and
// endpoints, the problems of API objects, what the dataplane keeps only in part, and the
// [proxy.Verdict] about a packet, with its reasons. Its data is not public: the program that
// serves the page must restrict access. To accept only clients on the same machine is not
// enough: a web site can make a browser there send requests, also to a name of the site
// that resolves to an address of the machine. The host name in the request (Request.Host)
// reveals that.
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
//	Packet        the [proxy.Packet] of the query, complete; null without one
//	Verdict       the [proxy.Verdict] about it
//	Error         what is wrong with the query; then the status is 400
//	Problems      texts, at most 200, those of the node first
//	Limits        texts, at most 200: what Services request and is kept only in part
//	ServicePorts  those that match the filter, at most 200, as [proxy.ServicePort]
//	Hidden        the number of others that match the filter
//	Total         the number of all service ports
//
// Values of these types have the names of their Go fields, and durations are nanoseconds.
package inspect
