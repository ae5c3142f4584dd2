// Package localroutes captures the traffic of Services without netfilter: the addresses of
// Services are local addresses of the node, and a BPF program of type sk_lookup assigns
// packets to them to the listeners of the backend.
//
//	packet ─▶ route of type local to a ClusterIP or external address ─▶ sk_lookup:
//	            map frontends   frontend: the listener for the node or for all others, refused, or dropped
//	            map owned       other ports of these addresses: refused
//	            map nodePorts   addresses that serve node ports: look up by port alone
//	            the rest: sockets of the node
//
// The routes outlive the process; the program and its maps do not.
package localroutes
