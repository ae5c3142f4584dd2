// Package objects builds API objects for tests: Services, EndpointSlices and Nodes that read
// like what kubectl prints, and random ones of a [Generator].
//
// An endpoint is a text: its address, then in any order a letter for its conditions, @ and its
// node, zones= and nodes= with hints. Without a letter the conditions are unset, as the API
// allows for a ready endpoint:
//
//	10.0.0.1
//	10.0.0.2 T @node-1 zones=a,b nodes=node-1
//
// [Letters] lists the letters. A port is a name and a number, for a Service perhaps with
// a node port, and a protocol other than TCP:
//
//	http 80:30080
//	dns 53/UDP
//
// The functions panic if a text has another form. Addresses are not checked.
package objects
