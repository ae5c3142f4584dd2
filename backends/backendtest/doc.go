// Package backendtest holds backends to the specification of a service proxy on
// a real kernel: it builds a small cluster out of network namespaces, sends
// real packets, and compares what becomes of them with [proxy.Route].
//
// # The testbed
//
// The node, on which the backend works, has pods of its own, a way to another
// node with pods, to clients outside of the cluster, and to a gateway that owns
// all virtual addresses. Servers everywhere say who they are, and at which
// address they see their client. So a test knows what became of each packet: who
// answered and whether the client was masqueraded, that it was refused (and
// how), that it was dropped, or that it left the node as it had come, in which
// case the gateway answers.
//
// # Worlds
//
// Nodes differ in ways that decide what becomes of packets. [Run] holds a backend to
// everything where each pod has a link of its own to the node. Beside that there are
// worlds, in which it sends the packets of all scenarios and random ones, has clients
// connect while Services change, and transfers much:
//
//	bridge-nf-1               pods on a Linux bridge, hairpin_mode on, bridge-nf-call-iptables
//	                          and -ip6tables 1
//	bridge-nf-1-hairpin-off   the same with hairpin_mode off
//	bridge-nf-0               the same with all three off
//	bridge-nf-0-hairpin-on    the same with hairpin_mode on
//	vxlan                     pods of the other node behind a VXLAN with an MTU of 1,450
//	vxlan-bridge              the same, with the node's pods as in bridge-nf-1
//	addresses                 several addresses of the node, also secondary ones
//	ipv6                      no addresses of IPv4 anywhere
//	marks                     another program uses bits of the marks of packets and
//	                          connections, as engines of network policies do
//	marks-restored            another program keeps all bits of a packet's mark with its
//	                          connection, and restores them
//	policy-routing            pods have a routing table of their own, answers to others go
//	                          by the main one, told by connection marks
//	rp-filter                 strict reverse path filter in IPv4
//	rp-filter-ipv6            the same in IPv6, by the rules of firewalld
//	forward-drop              other programs, with iptables of both flavours and nftables,
//	                          let through the node what pods have a part in, and no more
//	forward-drop-pods         they let nothing through
//
// What a dataplane cannot do in a world is a [Capability] that it lacks. Its packets must
// then be lost: whoever can serve them must not say that he cannot.
//
// Only Linux can run it, as root or where users may have namespaces.
package backendtest
