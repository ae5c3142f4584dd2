package ipaddr

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Parse reads an address without zone. It reads IPv4 octets with leading zeros as
// decimal, and returns an IPv4-mapped IPv6 address as IPv4.
func Parse(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil && strings.Contains(s, ".") {
		a, err = netip.ParseAddr(trimZeros(s))
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	if a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q has a zone", s)
	}
	return a.Unmap(), nil
}

// ParsePrefix reads a prefix in CIDR notation, its address as [Parse] does, and
// clears the bits after the prefix length.
func ParsePrefix(s string) (netip.Prefix, error) {
	addr, length, ok := strings.Cut(s, "/")
	if !ok {
		return netip.Prefix{}, fmt.Errorf("%q is not in CIDR notation", s)
	}
	bits, err := strconv.ParseUint(length, 10, 8)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q has no valid prefix length", s)
	}
	a, err := Parse(addr)
	if err != nil {
		return netip.Prefix{}, err
	}
	n := int(bits)
	if a.Is4() && strings.Contains(addr, ":") {
		n -= 96
	}
	p, err := a.Prefix(n)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q has no valid prefix length", s)
	}
	return p, nil
}

// FamilyOf returns the IP family of an address; an IPv4-mapped IPv6 address is IPv4.
func FamilyOf(a netip.Addr) v1.IPFamily {
	if a.Unmap().Is4() {
		return v1.IPv4Protocol
	}
	return v1.IPv6Protocol
}

// Families returns both IP families, IPv4 first.
func Families() [2]v1.IPFamily { return [...]v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} }

// Unspecified returns the unspecified address of a family.
func Unspecified(family v1.IPFamily) netip.Addr {
	if family == v1.IPv6Protocol {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Unmap returns an IPv4-mapped IPv6 address, as sockets report it, as IPv4.
func Unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// Errors of [CheckHost].
var (
	errUnspecified = errors.New("is the unspecified address")
	errLoopback    = errors.New("is a loopback address")
	errLinkLocal   = errors.New("is a link-local address")
	errMulticast   = errors.New("is a multicast address")
)

// Errors of [CheckEndpoint], [CheckVirtualIP] and [CheckExternalIP], beside the errors of [CheckHost].
var (
	errThisNetwork = errors.New("is an address of 0.0.0.0/8, which no host has")
	errDiscardOnly = errors.New("is an address of 100::/64, which no host has")
	errBroadcast   = errors.New("is the broadcast address")
	errReserved    = errors.New("is an address of 240.0.0.0/4, which is reserved")
)

// CheckEndpoint reports why an address cannot be that of an endpoint. It also refuses 0.0.0.0/8 and
// 100::/64, which the Kubernetes API accepts: packets go nowhere, or to a listener of backend
// userspace (see [IsListener]).
func CheckEndpoint(a netip.Addr) error {
	err := CheckHost(a)
	switch {
	case err != nil:
		return err
	case !IsListener(a):
		return nil
	case a.Is4():
		err = errThisNetwork
	default:
		err = errDiscardOnly
	}
	return fmt.Errorf("%s %w", a, err)
}

// CheckVirtualIP reports why an address cannot be a virtual IP of a Service. It also
// refuses 0.0.0.0/8 and the broadcast address, which the Kubernetes API accepts although
// no packet can be sent there.
func CheckVirtualIP(a netip.Addr) error {
	err := CheckHost(a)
	switch {
	case err != nil:
		return err
	case a.Is4() && a.As4()[0] == 0:
		err = errThisNetwork
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		err = errBroadcast
	default:
		return nil
	}
	return fmt.Errorf("%s %w", a, err)
}

// CheckExternalIP reports why an address cannot be an external IP, which users of Services
// choose. It also refuses 240.0.0.0/4. CheckVirtualIP allows that range for ClusterIPs and
// load balancers, because Linux routes such addresses and some clouds assign them.
func CheckExternalIP(a netip.Addr) error {
	if err := CheckVirtualIP(a); err != nil {
		return err
	}
	if a.Is4() && a.As4()[0] >= 240 {
		return fmt.Errorf("%s %w", a, errReserved)
	}
	return nil
}

// CheckHost reports why an address cannot be that of an endpoint or a virtual
// IP: the Kubernetes API refuses unspecified, loopback, link-local and
// multicast addresses.
func CheckHost(a netip.Addr) error {
	var err error
	switch {
	case a.IsUnspecified():
		err = errUnspecified
	case a.IsLoopback():
		err = errLoopback
	case a.IsMulticast():
		err = errMulticast
	case a.IsLinkLocalUnicast():
		err = errLinkLocal
	default:
		return nil
	}
	return fmt.Errorf("%s %w", a, err)
}

func trimZeros(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		startOfOctet := i == 0 || s[i-1] == '.' || s[i-1] == ':'
		for startOfOctet && s[i] == '0' && i+1 < len(s) && s[i+1] >= '0' && s[i+1] <= '9' {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
