// Package nftables programs the virtual IPs of Services into Linux nf_tables,
// over netlink. It needs no program at run time. The number of objects that it writes
// for a change does not depend on the number of Services. Neither does the time to add or
// remove endpoints, with an exception: the kernel checks the whole table if a frontend is new, gets its
// first endpoint or loses its last one, or if its number of endpoints leaves its class (4, 8,
// 16, ...). The check takes 0.2 ms with 1,000 Services, 2 ms with 10,000 (docs/performance.md), and
// longer if many Services have session affinity (docs/dataplane/nftables.md).
//
// # What is in the kernel
//
// One table in family ip and one in ip6, both with the name of the identity. Service
// ports are elements of maps; the number of chains and rules grows only with the number
// of those that have session affinity.
//
//	prerouting, output ─▶ chain services
//	                        map restrictions   frontend : jump to the chain of its source ranges
//	                        map services       frontend : goto the chain that serves it
//	                        map nodeports      node port : the same, at the node's addresses
//	                        other ports of ClusterIPs: reject; unused service addresses: drop
//	     ┌──────────────────────┘
//	     ▼
//	chain inside-…-outside-…      by source: pods, the node, outside
//	chain masquerade-…            marks the packet
//	chain stick-…                 map affinity-…: client : endpoint
//	chain pick-8                  map endpoints: frontend . random slot : endpoint; translate
//
//	input, postrouting ─▶ chain remember: stores the client's endpoint, for affinity
//	postrouting        ─▶ masquerade marked packets, and hairpins
//
// All base chains are of type nat: only the first packet of a connection traverses them,
// so all later packets cost nothing here.
//
// # What a change writes
//
// The endpoints of a frontend are in slots without gaps. A new endpoint gets the slot of
// a removed one, and the endpoint of the last slot moves to a gap: for each frontend, a
// change writes two or three map elements, and two elements of the set of hairpins.
// A pick chain serves all frontends with up to 4, 8, 16, ... endpoints; it tries random
// slots until it finds one that is filled. So the verdict of a frontend changes only when
// its number of endpoints leaves its class. All changes of an Apply are one transaction;
// if they redirect existing frontends to new chains, an earlier transaction adds these.
//
// # After a restart
//
// A new process lists the tables, keeps the objects that are correct and writes those
// that differ: none, if nothing has changed. Rules carry, as user data, a hash of their
// definition. Above 300,000 elements, the process does not list them but writes everything to
// a second table, which then replaces the first one: that is faster, and packets never traverse
// an incomplete table.
//
// # Between restarts
//
// A [proxy.Runner] notices at once when other programs commit to the tables, and repairs these. Commits to other tables cost nothing.
//
// # Other programs
//
// The package changes only its own tables. It uses one bit of the packet mark, which it
// clears in postrouting and input. Objects in foreign tables do not disturb it, and nft can
// list everything that it writes, and load the listing again. Other packet filters of the
// node must accept forwarded traffic.
package nftables
