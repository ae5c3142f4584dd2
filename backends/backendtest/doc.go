// Package backendtest is the conformance suite of backends, on a real kernel: it
// builds a small cluster of network namespaces, sends real packets, and compares
// their outcomes with [proxy.Route].
//
// # The testbed
//
// The node, on which the backend works, has pods of its own, and routes to another
// node with pods, to clients outside of the cluster, and to a gateway that owns
// all virtual addresses. The answers of servers tell the server, the address that the client
// used, and the address at which it sees the client, so that a test knows the outcome of each packet.
//
// # Failures
//
// [Run] begins with a few packets of each kind. If one of them has a wrong outcome, or if a call of
// the backend does not return in time, it ends: everything else would fail for the same reason. After
// failed scenarios it leaves out other tests of packets, and goes on with those of the dataplane's state.
//
// # Worlds
//
// Nodes differ in ways that matter for packets. [Run] runs all tests on a node where each
// pod has a link of its own. In addition there are worlds, in which it sends the packets of
// all scenarios and random ones, connects clients while Services change, and transfers much
// data:
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
//	marks-restored            another program saves all bits of a packet's mark in the mark
//	                          of its connection, and restores them
//	policy-routing            pods have a routing table of their own; answers use the main
//	                          one, selected by connection marks
//	rp-filter                 strict reverse path filter in IPv4
//	rp-filter-ipv6            the same in IPv6, by the rules of firewalld
//	forward-drop              other programs, with iptables of both flavours and nftables,
//	                          drop forwarded packets except those from and to pods
//	forward-drop-pods         they drop all forwarded packets
//
// If a dataplane cannot do something in a world, it lacks a [Capability]. Packets that need the
// capability must then be lost: a backend must not declare that it lacks a capability that it has.
//
// The suite needs Linux, and root or unprivileged user namespaces. [RunLaws] checks the laws that
// need no packets, on any operating system.
package backendtest
