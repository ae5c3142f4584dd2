// Command scale measures what a backend costs at a given number of services, in
// a network namespace of its own, and prints one JSON object:
//
//	go run ./examples/scale -backend nftables -services 10000 -endpoints 10 -floor
//
// Other backends are iptables, ipvs, userspace and kernelspace, which is measured with a simulated
// HNS whose calls take no time: their number counts. Times depend on the machine and its load. Compare
// those of nftables and ipvs with the floor of the same run: the bare netlink messages with the
// same elements.
package main
