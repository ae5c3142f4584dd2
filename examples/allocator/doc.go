// Command allocator allocates addresses and node ports of some ranges, and shows their
// owners.
//
//	allocator -range 10.96.0.0/24,30000-32767 -store file:services.map COMMAND ...
//
// The ranges are prefixes and port ranges, separated by commas. The stores are:
//
//	file:PATH                a file
//	kubernetes               IPAddress objects of the cluster of kubectl's configuration,
//	                         or else of the cluster in which the program runs
//	kubernetes:KUBECONFIG    the same with another kubeconfig file
//
// A cluster has ranges of its own, its ServiceCIDR objects, so -range may be missing; and
// its owners have names such as services/default/web. The example of package
// allocator/etcdstore shows the same with etcd, whose client this module does not need.
//
// # Commands
//
//	allocate OWNER [WHAT...]   allocate keys to an owner: an address or port by name, or
//	                           any of a kind: ipv4, ipv6, port, several as port*3.
//	                           All of them, or none. By default one IPv4 address
//	release OWNER KEY...       free keys of an owner
//	show                       how full the ranges are, and the owners
//	create                     make a missing map, empty: only for ranges that are not in
//	                           use yet
//	repair [-force] FILE       compare with a file of "KEY OWNER" lines and repair the
//	                           store; it makes a missing map. A file without owners, or
//	                           one by which most keys would be freed, needs -force
//
// A file store has no map before create or repair has made one; until then allocations
// fail.
//
// The exit status is 0 for success, 1 if a command failed or repair found something that
// it could not repair, and 2 for bad flags.
package main
