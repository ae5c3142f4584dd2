// Package inspect shows people what a dataplane holds, and answers why a packet goes
// where it goes.
//
// The page that [Handler] serves lists service ports with their frontends and
// endpoints, what is wrong with API objects, and the [proxy.Verdict] about a packet,
// with its reasons. It shows what not everybody may see, so whoever serves it decides
// who gets it. That a client is on the same machine says little: a browser there may ask on
// behalf of any site, and a site may give its own name the address of the machine. The name
// of the host in the request (Request.Host) tells.
//
// # JSON
//
// Who accepts application/json gets the same as one object:
//
//	curl -H 'Accept: application/json' 'ADDRESS/PATH?destination=10.96.0.1:443'
//
//	Title         as the page says it
//	Generation    of the [proxy.Snapshot]; 0 while nothing is known
//	Node          the [proxy.Node]; null while nothing is known
//	Packet        the [proxy.Packet] that was asked about, complete; null without one
//	Verdict       the [proxy.Verdict] about it
//	Error         what is wrong with the question; then the status is 400
//	Problems      texts, 200 at the most, those of the node first
//	ServicePorts  those that the filter leaves, 200 at the most, as [proxy.ServicePort]
//	Hidden        how many more the filter leaves
//	Total         how many there are
//
// What these types hold has the names of their fields, and durations are nanoseconds.
package inspect
