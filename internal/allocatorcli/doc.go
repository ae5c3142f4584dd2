// Package allocatorcli is what the commands around an allocator have in common: the flags,
// the subcommands and the picture. A [Program] differs from another one in its kinds of
// stores, since each kind has its price in packages.
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
//	                           nobody has yet
//
// Without a command, commands are read from standard input, a line each, while the store
// stays open.
//
// The exit status is 0 if all went well, 1 if a command failed, repair has found
// something that it could not mend or the program was interrupted, and 2 for bad
// flags.
package allocatorcli
