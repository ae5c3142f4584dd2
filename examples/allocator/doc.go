// Command allocator hands out addresses and node ports of some ranges, and shows who
// has them.
//
//	allocator -range 10.96.0.0/24 -store file:services.map COMMAND ...
//
// The ranges are prefixes and rows of ports, by commas. The store is a file, the
// memory of the program, which forgets everything when it ends, or a cluster:
//
//	memory, file:PATH        as they say
//	kubernetes               IPAddress objects of the cluster that kubectl would use, or
//	                         else of that in which the program runs
//	kubernetes:KUBECONFIG    the same for another kubeconfig file
//
// For etcd there is allocator/etcdstore/etcdallocator, in the module that has its client. It
// has the same commands; here, -store etcd:URL is an error that names it.
//
// A cluster has ranges of its own, its ServiceCIDR objects, so -range can be left out; and
// its owners have names such as services/default/web. Without a command,
// commands are read from standard input, a line each, while the store stays open.
//
// # Commands
//
//	allocate OWNER [WHAT...]   give keys to an owner: an address or port by name, or
//	                           any of a kind: ipv4, ipv6, port, several as port*3.
//	                           All that is asked for, or nothing. By default one of the
//	                           first range
//	try OWNER [WHAT...]        the same, but change nothing
//	release OWNER KEY...       free what an owner has
//	show                       ranges, bands and occupancy as a picture, and the owners
//	create                     make an empty map where there is none: only for ranges that
//	                           nobody uses yet
//	repair [-force] FILE       compare with a file of "KEY OWNER" lines and mend the
//	                           store; it makes a map where there is none. A file
//	                           without owners, or one by which most of what is held
//	                           would be freed, is believed with -force only
//	import FILE                take the keys of a RangeAllocation object, as etcd or
//	                           kubectl give it, for the owner "imported": all that
//	                           nobody has yet, in one step
//
// A file store has no map before repair, import or create has made one; until then
// nothing can be allocated.
//
// The exit status is 0 if all went well, 1 if a command failed, repair has found
// something that it could not mend or the program was interrupted, and 2 for bad
// flags.
package main
