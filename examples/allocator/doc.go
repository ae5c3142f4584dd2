// Command allocator allocates addresses and node ports of some ranges, and shows their
// owners.
//
//	allocator -range 10.96.0.0/24 -store file:services.map COMMAND ...
//
// The ranges are prefixes and port ranges, separated by commas. The stores are:
//
//	memory                   the memory of the program, until it ends
//	file:PATH                a file
//	kubernetes               IPAddress objects of the cluster of kubectl's configuration,
//	                         or else of the cluster in which the program runs
//	kubernetes:KUBECONFIG    the same with another kubeconfig file
//
// For etcd use allocator/etcdstore/etcdallocator, in the module that has its client. It has
// the same commands; here, -store etcd:URL is an error that names it.
//
// A cluster has ranges of its own, its ServiceCIDR objects, so -range may be missing; and
// its owners have names such as services/default/web. Without a command the program reads
// commands from standard input, one in each line, while the store stays open.
//
// # Commands
//
//	allocate OWNER [WHAT...]   allocate keys to an owner: an address or port by name, or
//	                           any of a kind: ipv4, ipv6, port, several as port*3.
//	                           All of them, or none. By default one key of the first
//	                           range
//	try OWNER [WHAT...]        the same, but change nothing
//	release OWNER KEY...       free keys of an owner
//	show                       ranges, bands and occupancy as a picture, and the owners
//	create                     make a missing map, empty: only for ranges that are not in
//	                           use yet
//	repair [-force] FILE       compare with a file of "KEY OWNER" lines and repair the
//	                           store; it makes a missing map. A file without owners, or
//	                           one by which most keys would be freed, needs -force
//	import FILE                take the keys of a RangeAllocation object, as etcd or
//	                           kubectl give it, for the owner "imported": all free ones,
//	                           in one step
//
// A file store has no map before repair, import or create has made one; until then
// allocations fail.
//
// The exit status is 0 for success, 1 if a command failed, repair found something that
// it could not repair or the program was interrupted, and 2 for bad flags.
package main
