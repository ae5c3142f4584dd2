// Command scale measures what a backend costs at a given number of services, in
// a network namespace of its own, and prints one JSON object:
//
//	go run ./examples/scale -backend nftables -services 10000 -endpoints 10 -floor
//
// Other backends are iptables and userspace. Times are those of this machine at this
// moment. Set those of nftables against the floor of the same run: the bare netlink
// transactions with the same elements.
package main
