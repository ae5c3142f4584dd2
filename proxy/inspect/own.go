package inspect

import (
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// isOwn reports whether an address is one of the node, where node ports may answer. Backends add
// addresses of Services to interfaces, too; those are not the node's.
func isOwn(s proxy.Snapshot, a netip.Addr) bool {
	n := s.Node()
	switch {
	case a.IsLoopback(), slices.Contains(n.Addresses, a):
		return true
	case slices.ContainsFunc(n.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }):
		return false
	case runtime.GOOS == "windows":
		return false // There, node ports answer only at the addresses of the Node.
	}
	all, err := net.InterfaceAddrs()
	return err == nil && has(all, a) && !isAtServiceDevice(a)
}

// isAtServiceDevice reports whether a device that is only for addresses of Services has an address.
func isAtServiceDevice(a netip.Addr) bool {
	devices, err := net.Interfaces()
	return err == nil && slices.ContainsFunc(devices, func(d net.Interface) bool {
		if !strings.HasSuffix(d.Name, ipaddr.ServiceDeviceSuffix) {
			return false
		}
		all, err := d.Addrs()
		return err == nil && has(all, a)
	})
}

func has(all []net.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(x net.Addr) bool {
		p, err := netip.ParsePrefix(x.String())
		return err == nil && p.Addr() == a
	})
}
