// Package addresses delivers packets to sockets by adding the addresses of Services to an
// interface of the node, and listening at each frontend. It needs nothing of the system but that,
// so it is for systems without netfilter, such as Windows.
//
// # Addresses
//
// A [Manager] adds and removes addresses. Ports of several Services may have one address: it
// stays while one of them needs it. An address that the host had before is used, and never
// removed. A file has the addresses that were added, so that the next process knows them, also
// after a crash: a line is appended before an address is added, and after one was removed. If the
// file is damaged, all existing addresses count as addresses of other programs.
//
// # Listeners
//
// Each frontend that any client may reach has a socket of its own: one for TCP, or one for UDP.
// A node port has one at each address of the Node object that the host has and that serves node
// ports; where another program listens, it is left out, and [Capture.CheckNode] names it. Where all clients are rejected there is no socket, so that the system refuses packets.
//
// A [Loopback] has such sockets at loopback addresses alone, for node ports. It adds no address and has no
// file; a socket that cannot be opened is an error of its service port.
//
// The engine decides about each connection after it was made, so that denied ones are reset.
package addresses
