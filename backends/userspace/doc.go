// Package userspace is a backend that carries the traffic of Services itself, through sockets,
// on Linux and on Windows. The system only delivers packets to these sockets. In return for
// the processor time that this costs, the backend does what the kernel does not:
// if an endpoint does not answer, the backend tries another one while the client waits; it
// lets the connections of a removed endpoint end within a grace period; affinity ends after
// the timeout of the Service; a connection to a Service without endpoints can wait for the
// first one; endpoints can get the client's address by the PROXY protocol.
//
// # Capture
//
// [Options].Capture chooses among the captures. By default, on Linux with [TPROXY], one table in
// family ip and one in ip6, both with the name of the identity, mark the packets to
// frontends; they reject packets to frontends without endpoints, and drop those that a policy
// denies. A routing rule for the mark selects a table in which every address is local, and
// TPROXY delivers the packets to the sockets of the backend with their destination unchanged.
// So a few sockets serve all Services, and a new Service is a few elements of maps.
//
//	prerouting, output ─▶ chain services
//	                        map restricted            frontend: drop clients outside of its source ranges
//	                        maps frontends, nodeports frontend: capture, reject or drop, by source
//	                        other ports of ClusterIPs: reject; unused service addresses: drop
//	prerouting ─▶ captured: TPROXY to the socket for pods, for the node, or for outside
//	bridged    ─▶ captured, from a bridge: DNAT to the socket for pods, or for outside
//
// Endpoints see the client's address wherever [proxy.Route] says so: the backend's
// connections have it as their source, and the answers, which pass the node, are delivered to
// the backend. The source ports of these connections are 10240 to 30239, which clients do not
// use by default. If a client does use one, and then connects to an endpoint directly, its
// packets are lost until the kernel has forgotten the backend's earlier connection from the
// same port. Answers of an endpoint on the client's own link, such as those between two pods
// on one bridge, would bypass the node; such an endpoint sees the address of the node.
//
// With [Redirect], the same tables translate destinations to the addresses of the
// sockets, and connection tracking has the original ones. Endpoints see the node, and an
// endpoint that is itself an address of a Service is not reached, since such connections
// could loop. docs/dataplane/userspace.md compares the two.
//
// # Windows
//
// On Windows, the capture [Addresses] adds the addresses of Services to an interface of the node,
// and listens at each frontend. Endpoints see the node, and an endpoint that is itself an address
// of a Service is not reached. Where no endpoint can serve, Windows refuses; dropped connections
// are reset. A file records which addresses were added: they stay when the process ends, the next
// process takes them over, and Cleanup removes them. [AddressOptions] choose the interface.
//
// # Loopback addresses
//
// [Loopback] listens at node ports at the loopback addresses that [proxy.NodePortAddresses] selects,
// TCP and UDP, for processes of the node. It needs no privileges and changes nothing in the kernel, and
// is for a [proxy.Runner] of its own beside that of any other backend. A node port that another program
// of the node has is an error of its service port, as is one of SCTP, and one beyond an eighth of the
// file descriptors.
//
// # While no process runs
//
// The kernel objects stay when the process ends. They drop or refuse packets that would
// be captured, until another process takes over or Cleanup removes them. So no packet
// bypasses the policies of Services. Connections end with the process; [Backend.Drain] lets
// them end first. A new process reads the kernel objects and writes only what differs.
//
// Two instances with different identities, in name and mark, may work in one
// network namespace. Two processes with the same identity must not: the listen addresses of
// the second one are in use.
//
// # Requirements
//
// On Windows, the right to change addresses, which administrators have. On Linux, 5.10 or later with nf_tables, connection tracking and the modules nft_nat,
// nft_fib and nft_ct, for [TPROXY] also nft_tproxy, nft_socket, nft_dup_ipv4 and nft_dup_ipv6,
// and zones of connection tracking. CAP_NET_ADMIN; with TPROXY also CAP_NET_RAW. File
// descriptors: two for each connection, two more for each direction in which bulk data flows, one for each session. [Options].Connections says how many
// of them the backend leaves to the rest of the process. SCTP is not supported: Apply names such
// service ports in [proxy.PortErrors], and serves all others.
package userspace
