// Package cluster is the small cluster in which tests send packets to Services: its hosts, the
// Services that tests make, and the oracle that judges the replies.
//
//	client  local  local2         outside   stranger
//	      \   |   /                   |      |
//	       [ node ]-------------------+------+
//	        |    |
//	 [ gateway ] [ remote-node ]
//	               |        |
//	             remote  remote2
//
// The node is where a backend programs its dataplane. Packets between two hosts of
// the drawing pass the hosts between them, in both directions. The gateway is the
// node's default route and owns all ranges of virtual addresses, so it answers packets
// that leave the node without translation. Links have only the hosts' own addresses,
// and the node has the same address at all links but the links of pods. That is its
// source address when it masquerades.
//
// A host may stand for a crowd: it then has all addresses of a range, as client or as endpoint.
package cluster
