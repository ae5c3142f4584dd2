// Package ipvs reads and writes the virtual servers of Linux's IP Virtual Server (IPVS) and
// their destinations, which ipvsadm calls real servers.
//
// A [Conn] belongs to a network namespace. Changes are a list of [Op]; few system calls carry
// out the whole list, and one that fails does not stop the others:
//
//	c, err := ipvs.Open()
//	if errors.Is(err, ipvs.ErrMissing) {
//		// this kernel has no IPVS
//	}
//	web := ipvs.ServiceKey{Protocol: 6, Addr: netip.MustParseAddrPort("192.0.2.1:80")}
//	failures, err := c.Do(ctx, []ipvs.Op{
//		ipvs.AddService(web, ipvs.ServiceConfig{Scheduler: ipvs.RR}),
//		ipvs.AddDestination(web, ipvs.Destination{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Weight: 1}),
//	})
//
// # Listing
//
// The kernel sends a list in several messages and holds no lock between two of them. It
// continues by the number of entries that it has sent. So a list is complete if no server of
// any namespace (for [Conn.Services]) or no destination of the server (for
// [Conn.Destinations]) is added or removed meanwhile. Otherwise entries can be missing or
// occur twice, and the kernel does not say so. Each entry by itself is consistent.
//
// # Privileges
//
// All calls need CAP_NET_ADMIN in the initial user namespace: a container with a user
// namespace of its own gets EPERM.
//
// On other systems than Linux the package has only the values.
package ipvs
