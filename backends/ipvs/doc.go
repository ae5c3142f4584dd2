// Package ipvs programs the virtual IPs of Services into IPVS, the load balancer of the Linux
// kernel, for those who need its schedulers, its draining of connections, or ipvsadm.
//
// # What is in the kernel
//
// A dummy device has the addresses of Services, so that the node takes packets to them in. Each
// frontend is a virtual server, a node port one for each address of the node, and each endpoint a
// real server. Sets of ipset have what IPVS cannot decide, and a constant number of iptables
// rules use them:
//
//	mangle INPUT, OUTPUT       set INSIDE: marks packets from inside the cluster for another
//	                           virtual server, if externalTrafficPolicy is Local
//	mangle OUTPUT              the node's own packets: source ranges, sets DROP-NODE, DROP-POD
//	nat PREROUTING, OUTPUT     sets MASQ-POD, MASQ-NODE, MASQ-OUTSIDE: mark the connection
//	filter INPUT               source ranges, sets DROP-… and REJECT-…; ports of addresses of
//	                           Services that no Service has: reject
//	IPVS                       translates
//	nat POSTROUTING            masquerades marked connections, hairpins, and the node's own
//	filter FORWARD, OUTPUT     unused service addresses: drop
//
// IPVS handles received packets after filter INPUT, and packets of the node's processes after nat
// OUTPUT. docs/dataplane/ipvs.md describes every set.
//
// # What a change writes
//
// A change of endpoints is one request for each real server and frontend, by github.com/moby/ipvs, and
// no program is started. A new frontend gets its sets, its
// address, its virtual server and its real servers in this order, and lets packets in last; a
// removed one goes in reverse.
//
// IPVS has no transactions. The next Apply continues after one that failed.
//
// # Draining
//
// An endpoint that leaves a TCP port gets weight 0: open connections continue, and new ones go to
// other endpoints. Its real server is removed when it has no connections left, or after
// [Options.DrainTimeout]. The time at which that ends is the upper threshold of the real server,
// in seconds since the node was started; so a restart continues draining. UDP and SCTP endpoints
// have weight 0 while they still serve. A Service that is deleted goes at once, with its
// connections.
//
// # Schedulers
//
// [Options.Scheduler] is for all Services, [SchedulerAnnotation] for a single one. Services with
// session affinity have the scheduler mh and persistence. IPVS keeps a client's endpoint for
// each virtual server; mh chooses by the client's address, so that the endpoints of all addresses of a
// port agree, unless the endpoints have changed in between.
//
// # After a restart
//
// A new process lists everything and writes what differs: nothing, if nothing has changed. It
// knows its virtual servers by a tag in their flags, of which the kernel uses only the lowest
// ones, and by a set; foreign ones stay as they are. Every resync lists
// everything, since IPVS and ipset do not tell of changes; changes of addresses are noticed at once
// (WaitDrift of [proxy.Abilities]).
//
// The backend sets sysctls of IPVS and net.ipv4.ip_forward, which stay after Cleanup.
package ipvs
