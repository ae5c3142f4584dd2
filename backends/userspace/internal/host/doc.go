// Package host provides what the captures of the userspace backend need of the node: sockets
// in the network namespace of the backend, the addresses at which it listens, and routes in
// the table of local addresses.
package host
