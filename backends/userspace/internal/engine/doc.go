// Package engine carries connections and datagrams from clients of Services to
// endpoints, through sockets. It is the portable part of the userspace backend: the captures
// (packages netfilter and addresses) deliver packets to its listeners.
//
// # Connections
//
// Each connection has a goroutine for each direction, and waits for no other connection. Where
// both sides are TCP, bulk data stays in the kernel (splice, on Linux); a silent connection holds
// no buffer. When one side has sent everything, the other one is half-closed. A connection that
// is silent for too long is closed, and so is one whose endpoint was removed, at the end of the
// grace period.
//
// All endpoints have their turns, unless Hooks.Pick chooses. If the endpoint does not answer within
// a quarter of a second, another one is tried, each next one for longer. For some seconds the
// endpoint is tried last for the source address that it saw: a network policy may concern that
// source alone. When two sources in a row have failed, it is tried last for all sources that it
// answers by the same link, and one client at a time checks whether it works again. A client
// with session affinity changes its endpoint only because of its own failures.
//
// # Datagrams
//
// All datagrams of one client to one frontend are a session, with one endpoint and a
// socket of its own. It ends when it has been silent for too long, when its endpoint is
// removed, or when the endpoint refuses datagrams; the next datagram begins another session.
//
// # Limits
//
// At the limit of connections, each listener accepts one more, which waits; further ones wait
// in the kernel's queue. At the limit of sessions, a new one ends the one that has been idle
// for longest, and that is counted. Once half of a limit is in use, a client that has an
// eighth of it gets no more, so that one client alone leaves half to the other clients; once
// three quarters are in use, the same holds for a service port that has half. The limits
// follow from the number of file descriptors and leave a quarter of them to the rest of the
// process. When a listener fails, for example for lack of file descriptors, the engine counts
// that and retries after a delay. Only [Engine.Close] ends the engine.
package engine
