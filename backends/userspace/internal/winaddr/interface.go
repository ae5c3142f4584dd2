package winaddr

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vipkit/vipkit/backends"
)

// find returns the interface with a name. It may be missing for some time, since the network of the
// containers makes it.
func find(name string) (*net.Interface, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("%w: the interface %q: %w", backends.ErrUnavailable, name, err)
	}
	return i, nil
}

// hostAddresses returns the addresses of all interfaces.
func hostAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	for _, x := range list {
		if n, ok := x.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(n.IP); ok {
				all = append(all, a.Unmap())
			}
		}
	}
	return all, nil
}
