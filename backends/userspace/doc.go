// Package userspace is a backend that carries the traffic of Services itself,
// through sockets, on Linux. The kernel only leads packets to it. In return for
// the cost of that it does what no kernel does: an endpoint that does not answer
// is passed over while the client waits, connections of an endpoint that goes are
// drained, affinity ends when the Service says, a connection to a Service without
// endpoints can wait for the first one, endpoints can be told who the client is.
//
// # How traffic gets here
//
// [Options].Capture chooses among three ways. By default, [TPROXY], one table in
// family ip and one in ip6, both with the name of the identity, mark the packets
// that go to frontends; what has no endpoints is rejected there, and what a policy
// forbids is dropped. A routing rule for the mark leads to a table
// in which every address is local, and TPROXY hands the packets to the sockets of
// the backend with their destination as it was. So a few sockets serve all
// Services, and a new Service is a few elements of maps.
//
//	prerouting, output ─▶ chain services
//	                        map restricted            frontend: drop what its source ranges do not hold
//	                        maps frontends, nodeports frontend: capture, reject or drop, by source
//	                        the rest to ClusterIPs: reject; to unused service addresses: drop
//	prerouting ─▶ captured: TPROXY to the socket for pods, the node, or others
//	bridged    ─▶ captured, and come by a bridge: DNAT to the socket for pods, or others
//
// Endpoints see the client's address wherever [proxy.Route] says so: their
// connections begin at that address, and the answers, which come back through the
// node, are led to the backend. The ports of these connections are 10240 to 30239, which
// clients do not use by themselves; a client that does may find, when it goes on to talk
// to an endpoint directly, that its packets are lost for as long as an earlier
// connection from the same port lingers. Answers of an endpoint on the client's own
// link, such as those between two pods on one bridge, would not come back through
// the node; such an endpoint sees the address of the node.
//
// With [Redirect], the same tables translate destinations to the addresses of the
// sockets, and connection tracking tells what they were. With [LocalRoutes] there is
// no netfilter at all: addresses of Services are local ones, and a BPF program gives
// what comes to them to the sockets. With both, endpoints see the node, and an
// endpoint that is itself an address of a Service is not reached, since that could
// go round in circles. docs/dataplane/userspace.md compares all three.
//
// # When it is not there
//
// What is in the kernel stays when the process ends, and drops or refuses what would
// be captured, until another process takes over or Cleanup removes it. Nothing gets
// past the policies of Services, except that with local routes a program of the node
// that listens at every address then has addresses of Services too. Connections end
// with the process; [Backend.Drain] lets them end first. A new one reads back what is
// there and writes only what differs.
//
// Two instances with different identities, in name and mark, may work in one
// network namespace. Two processes with the same identity may not: the second
// one finds its addresses taken.
//
// # What it needs
//
// Linux 5.10 or later with nf_tables, connection tracking and the modules nft_nat,
// nft_fib and nft_ct, for [TPROXY] also nft_tproxy and nft_socket, or BPF instead of
// all that for [LocalRoutes]; CAP_NET_ADMIN, except for Redirect also
// CAP_NET_RAW, and for LocalRoutes CAP_BPF; and file descriptors: two for each
// connection, two more for each direction in which bulk data flows, one for each
// session. [Options].Connections says how many of them the backend leaves to others.
// SCTP is not carried: such ports are reported by name, and all others are served.
package userspace
