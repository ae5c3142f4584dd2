package ipaddr

import "net/netip"

// IsListener reports whether an address is in the ranges in which backend userspace listens for
// packets that it has captured: 0.0.0.0/8 and 100::/64. No host has such an address.
func IsListener(a netip.Addr) bool {
	if a.Is4() {
		return a.As4()[0] == 0
	}
	b := a.As16()
	return [8]byte(b[:8]) == [8]byte{0: 1}
}
