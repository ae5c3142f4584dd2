// Package conntrack removes stale flows from the kernel's connection tracking after Services
// have changed.
//
// A dataplane that translates addresses decides once for each flow. Later packets
// follow the entry of the flow in the connection tracking table, whatever the rules
// are by then. A TCP connection ends with its endpoint, so TCP flows stay. A UDP client does not notice, and
// its flow lasts as long as it sends. So after a change of a UDP or SCTP Service:
//
//   - if an endpoint was removed, also the last one, flows to it are removed;
//   - if a traffic policy, the allowed sources, or what identifies pods has changed, flows
//     are removed whose source [proxy.Route] now denies, or sends to other endpoints;
//   - if a frontend was removed (Service, port, VIP, node port, or an address of node
//     ports), its translated flows are removed;
//   - if a frontend is new, flows to it that go to no endpoint of it are removed, and
//     those that began with a reply from it; if there were any, Clean waits some 20 ms for
//     further replies. At the start of a process, all frontends are new;
//   - at the start, translated flows to frontends that the backend finds of an earlier process (FoundFrontends of [proxy.Abilities]),
//     and that are gone, are removed;
//   - if a service range is new, translated flows to addresses in it that no Service
//     has are removed, unless they are foreign ([Options]).
//
// Flows to an endpoint that Route allows are kept. So are flows to one that terminates and still serves, or that
// topology does not prefer any more, unless the Local policy decides about them and the endpoint is on another
// node. An entry does not say where its flow came in: if only an interface identifies pods ([proxy.LocalTraffic]), flows that Route would
// allow either from a pod or from outside are kept.
//
// # Use
//
// A Cleaner is for the FlowCleaner of a [proxy.Runner], which calls it after the rules have changed:
// before, a packet would make the same stale flow again. Programs without a Runner, and those
// that remove another program's rules once they serve, call [Cleaner.Clean]; the latter once
// more from the zero Snapshot, since packets have followed those rules until then.
//
// # Cost
//
// Without changes of UDP and SCTP Services there is no system call, nor if endpoints are only added. What is expensive is a dump: the
// kernel walks its whole table, whatever its filter is. One dump for each family and protocol serves all
// changed frontends, and a further one the replies under way, until there is none (eight at most).
// A program that served a frontend before may reply still later. After an untranslated flow was removed,
// [Cleaner.RetryDue] therefore reports after 30 s that it is time for another look, and RemoveStale checks all flows.
// While each look finds such a reply, the time to the next one doubles, up to 32 minutes.
// docs/performance.md has figures. The kernel's events of new flows would cost each new connection
// of the node more than they save.
//
// Entries are removed one by one, by tuple and identity, so that a newer flow with the same tuple
// stays. This package encodes its few messages itself, since github.com/vishvananda/netlink offers
// neither.
//
// # What is not touched
//
// Flows that backend userspace carries, as long as Route forwards them: their entries have no endpoint, and its sessions
// follow Route. Only a full RemoveStale removes entries of TPROXY, which look like flows that nobody has captured; the
// next datagram makes them again. Flows to addresses that no frontend has or had, flows in other zones than the
// default one, untranslated flows to removed frontends, and node ports at addresses
// of other nodes. Outside of the service ranges, flows that became stale while no process was
// running stay until they expire if the backend does not find their frontend: they may be another program's.
//
// The kernel does not remove flows that another program has offloaded to a flowtable of
// nf_tables. If there are any of UDP or SCTP, [Cleaner.RetryDue] reports so 30 s later, and RemoveStale
// retries those to frontends that exist.
//
// # Parameters
//
// [Parameters.Set] sets the size and the timeouts of the table. It is independent of a
// [Cleaner]: an agent calls it once, as kube-proxy does.
package conntrack
