// Package nftables programs the virtual IPs of Services into Linux nf_tables,
// over netlink. No program is needed at run time. What is written for a change
// does not depend on how many Services there are, nor does the time it takes while
// endpoints come and go. A frontend that is new, or gets a first or loses a last
// endpoint, makes the kernel check the whole table, which takes a tenth of a
// microsecond for each Service there is.
//
// # What is in the kernel
//
// One table in family ip and one in ip6, both with the name of the identity.
// Services are elements of maps; the number of chains and rules does not grow
// with them, but for Services with session affinity.
//
//	prerouting, output ─▶ chain services
//	                        map restrictions   frontend : jump to the chain of its source ranges
//	                        map services       frontend : goto the chain that serves it
//	                        map nodeports      node port : the same, at the node's addresses
//	                        the rest to ClusterIPs: reject; to unused service addresses: drop
//	     ┌──────────────────────┘
//	     ▼
//	chain inside-…-outside-…      by source: pods, the node, others
//	chain masquerade-…            marks the packet
//	chain stick-…                 map affinity-…: client : endpoint
//	chain pick-8                  map endpoints: frontend . random slot : endpoint; translate
//
//	input, postrouting ─▶ chain remember: which endpoint the client has got, for affinity
//	postrouting        ─▶ masquerade what is marked, and what would talk to itself
//
// All base chains are of type nat: the kernel asks them about the first packet of
// a connection only, so traffic that flows costs nothing here.
//
// # What a change writes
//
// The endpoints of a frontend stand in slots without gaps. A new endpoint takes
// the slot of one that leaves, and a gap is filled with the last slot: two or
// three map elements, and two of the set that finds hairpins, for each frontend.
// A pick chain serves all frontends with up to 4, 8, 16, ... endpoints; it
// tries random slots until it finds one that is filled. So the verdict of a
// frontend changes only when its number of endpoints leaves its class. All
// changes of an Apply go in one transaction, after those chains that they lead to.
//
// # After a restart
//
// A new process reads back what is there, keeps what fits and writes what
// differs: nothing, if nothing has changed. Rules carry, as user data, a hash of
// what they are made from. Above some hundred thousand elements everything is
// made anew in a second table instead, which then takes the place of the first:
// that is faster than reading it back, and no packet meets anything unfinished.
//
// # Between restarts
//
// [proxy.DriftChecker] is implemented: whatever somebody else commits to the tables, a
// Runner notices at once, and repairs it. Commits to other tables cost nothing.
//
// # To others
//
// The package touches only its own tables. It uses one bit of the packet mark,
// for packets on their way through the node. What other programs put into their
// own tables does not stop it, and everything that it writes can be listed by nft
// and loaded again. Forwarded traffic must be accepted by whatever else filters
// on the node.
package nftables
