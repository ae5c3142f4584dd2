// Package engine carries connections and datagrams from clients of Services to
// endpoints, through sockets. It is the portable part of the userspace backend:
// how traffic comes to it is not its matter, and it asks nothing of the
// operating system that package net does not have.
//
// # Connections
//
// Each connection has two goroutines, one for each direction, and waits for
// nobody else's. Where both sides are TCP, bulk data goes through the kernel
// only (splice, on Linux); a connection that is silent holds no buffer. What one
// side has to say no more is told the other (half-close). A connection that is
// silent for too long is closed, and so is one whose endpoint has been gone for
// the grace period.
//
// An endpoint that does not answer is given up after a quarter of a second, and
// another one is tried, each next one for longer. It then comes last for some
// seconds, after which one client at a time finds out whether it is back.
//
// # Datagrams
//
// All datagrams of one client to one frontend are a session, with one endpoint
// and a socket of its own. It ends by silence, when its endpoint goes, or when
// the endpoint refuses; the next datagram begins another one.
//
// # Limits
//
// With as many connections as are allowed, no more are accepted: they wait in
// the queue of the kernel. Where the process has no more file descriptors,
// accepting pauses. Nothing ends the engine but [Engine.Close].
package engine
