// Package conntrack removes what the kernel's connection tracking remembers of
// Services that are no more as they were.
//
// A dataplane that translates addresses decides once for each flow. Later packets
// follow the entry of the flow in the connection tracking table, whatever the rules
// say by then. TCP ends by itself when an endpoint dies; a sender of UDP never
// learns, and its flow lives as long as it sends. So each change of a UDP or SCTP
// Service needs a look at its flows:
//
//   - an endpoint is gone, also the last one: flows to it are removed;
//   - a frontend is gone (Service, port, VIP, node port, or an address of node
//     ports): its translated flows are removed;
//   - a frontend is new: flows to it that go elsewhere, or nowhere in particular,
//     are removed, and those that began with an answer from it; where there were
//     any, Clean waits some 20 ms for what is under way;
//   - nothing is known, as at the start of a process: all frontends are looked at
//     as if they were new;
//   - a service range is new: translated flows to addresses in it that no Service
//     has are removed, unless they are foreign ([Options]).
//
// A flow is kept when it goes to an endpoint that could serve, whether or not it is
// in a pool of its service port: one that terminates, or that topology or policy
// deselect, keeps the flows that it has. So a flow moves when its endpoint is gone,
// or stops to serve.
//
// # Wiring
//
// [Cleaner.Wrap] puts a Cleaner behind a [proxy.Backend]: flows are cleaned after
// the rules have changed, since a packet would make the same wrong flow again
// before. [Cleaner.Clean] is for programs that do it by themselves, and for those that
// remove the rules of another program once they serve: packets have gone by these until
// then, so it takes one more Clean from the zero Snapshot.
//
// # Cost
//
// Work follows changes. Where nothing of UDP and SCTP changed, there is no system
// call. A few changed frontends are looked up one by one with a filter that the kernel
// applies (Linux 5.8 and later; in IPv6 it goes by protocol and port only), so that
// foreign flows do not even leave the kernel;
// many at once by one dump for each family and protocol. Without filters the answer
// is the same, since each flow is looked at again here.
//
// Entries are removed one by one, by tuple and identity, so that a flow which took the
// place of another one meanwhile is not hit. This, and the filter, is why this
// package encodes its few messages itself: github.com/vishvananda/netlink, which
// carries them, offers neither for connection tracking.
//
// # What is not touched
//
// Flows to addresses that no frontend has or had, flows in other zones than the
// default one, and untranslated flows to frontends that are gone. Node ports concern
// addresses of this node only. What was removed while no process was running cannot be
// told from what other programs serve, so it stays until it expires, but within the
// service ranges, where Options say what is foreign.
//
// Flows that another program has led past all rules, by a flowtable of nf_tables, cannot be
// removed. Where there are any of UDP or SCTP, a wrapped backend looks again each 30 s for
// those to frontends that still are.
//
// # TCP
//
// TCP flows are left alone unless [Options] say otherwise. Then it is those to
// endpoints that have left the API: an endpoint that terminates is in the API. And it
// is those that began before their frontend was there, or before node ports answered
// at that address, and were never answered: what their clients send later, from the
// same port, goes the same way in vain for as long as the entry is there
// (net.netfilter.nf_conntrack_tcp_timeout_syn_sent, two minutes). A new frontend of TCP
// then costs a look at the table, like one of UDP.
//
// # Parameters
//
// [Parameters] sets how many flows the kernel remembers, and for how long. It has nothing
// to do with a [Cleaner]: an agent sets them once, as kube-proxy does.
package conntrack
