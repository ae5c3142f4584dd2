package engine

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// proxyHeader returns the header of the PROXY protocol for a TCP connection
// from one address to another, in version 1 (text) or 2 (binary); nil for any
// other version. Addresses of different families are both written as IPv6.
func proxyHeader(version int, from, to netip.AddrPort) []byte {
	four := from.Addr().Is4() && to.Addr().Is4()
	if !four {
		from = netip.AddrPortFrom(netip.AddrFrom16(from.Addr().As16()), from.Port())
		to = netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())
	}
	switch version {
	case 1:
		family := "TCP6"
		if four {
			family = "TCP4"
		}
		return fmt.Appendf(nil, "PROXY %s %s %s %d %d\r\n", family, from.Addr(), to.Addr(), from.Port(), to.Port())
	case 2:
		// The signature, then version 2 with command PROXY.
		b := []byte("\r\n\r\n\x00\r\nQUIT\n\x21")
		const tcp4, tcp6 = 0x11, 0x21
		if four {
			b = append(b, tcp4, 0, 12)
		} else {
			b = append(b, tcp6, 0, 36)
		}
		b = append(b, from.Addr().AsSlice()...)
		b = append(b, to.Addr().AsSlice()...)
		b = binary.BigEndian.AppendUint16(b, from.Port())
		return binary.BigEndian.AppendUint16(b, to.Port())
	}
	return nil
}
