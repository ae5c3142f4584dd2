// Package ipvs is the edge to IPVS by github.com/moby/ipvs, and to ipset by
// github.com/vishvananda/netlink. It adds what these lack: errors that name what the kernel lacks,
// an end of waiting, many entries of a set in one request with the failure of each, and the marks of entries.
//
// A [Conn] and [Sets] belong to a network namespace. All calls need CAP_NET_ADMIN in the initial
// user namespace: a container with a user namespace of its own gets EPERM.
//
// # Listing
//
// The kernel sends a list in several messages and holds no lock between two of them. A list of
// virtual servers is complete if no server of any namespace is added or removed meanwhile,
// one of destinations if no destination of the server is. Otherwise some can be missing or occur twice.
// Entries of a set that exist during the whole call occur exactly once.
//
// # Limits
//
// moby/ipvs reads weights modulo 65,536 and counts of connections and packets modulo 2^32. It starts
// modprobe once in a process, and writes a line to the standard error if there is none: the kernel has
// loaded ip_vs by then. It asks once in a process for the number that generic netlink has given to IPVS, so
// that a process cannot go on after ip_vs was unloaded ([ErrReloaded]).
//
// On other systems than Linux the package is empty.
package ipvs
