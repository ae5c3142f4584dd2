// Package engine carries connections and datagrams from clients of Services to
// endpoints, through sockets. It is the portable part of the userspace backend:
// how traffic comes to it is not its matter. On Linux it has sockets of its own
// ([Engine.Listener], Begin), which cost less; elsewhere, and for whoever brings
// other connections, package net is all that it asks for.
//
// # Connections
//
// Each connection has a goroutine, and a second one as soon as what is said does
// not go through at once; it waits for no other connection. Where both sides are
// TCP, bulk data goes through the kernel only (splice, on Linux); a connection
// that is silent holds no buffer. What one side has to say no more is told the
// other (half-close). A connection that is silent for too long is closed, and so
// is one whose endpoint has been gone for the grace period.
//
// An endpoint that does not answer is given up after a quarter of a second, and
// another one is tried, each next one for longer. It then comes last for some
// seconds, for those whose source address the endpoint saw: a policy may be meant
// for them alone. When two sources in a row have failed, it comes last for all whom
// it answers by the same link, and one client at a time finds out whether it is back. Who sticks to an endpoint
// by session affinity leaves it because of what happened to himself only.
//
// # Datagrams
//
// All datagrams of one client to one frontend are a session, with one endpoint
// and a socket of its own. It ends by silence, when its endpoint goes, or when
// the endpoint refuses; the next datagram begins another one.
//
// # Limits
//
// With as many connections as are allowed, each door accepts one more, which
// waits; others wait in the queue of the kernel. One session too many ends the one
// that has been idle for longest, and that is counted. Once half of what is allowed
// is in use, a client who has an eighth of it gets no more, so that one client alone
// leaves half to others; once three quarters are, the same goes for a service port
// that has half. What is allowed follows from the number of file descriptors, so that
// the rest of the process has a quarter of them. Where a socket at which clients come in fails, be it for lack of
// file descriptors, it is asked again after a while, and that is counted. Nothing
// ends the engine but [Engine.Close].
package engine
