package cluster

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Tests are written for IPv4. Each object has a counterpart for IPv6, in which every
// address is replaced by one of the same host.

// counterpartRanges pairs ranges of IPv4 and IPv6; the last bytes of addresses are equal.
func counterpartRanges() map[netip.Prefix]string {
	return map[netip.Prefix]string{
		netip.MustParsePrefix("10.96.0.0/16"):     "fd00:96::",
		netip.MustParsePrefix("203.0.113.0/25"):   "2001:db8:e::",
		netip.MustParsePrefix("203.0.113.128/25"): "2001:db8:f::",
		netip.MustParsePrefix("10.0.0.0/24"):      "fd00:10::",
		netip.MustParsePrefix("10.1.0.0/24"):      "fd00:10:1::",
		netip.MustParsePrefix("10.4.0.0/16"):      "fd00:10:4::",
		netip.MustParsePrefix("10.5.0.0/16"):      "fd00:10:5::",
		netip.MustParsePrefix("10.6.0.0/16"):      "fd00:10:6::",
		netip.MustParsePrefix("172.18.0.0/24"):    "fd00:18::",
		netip.MustParsePrefix("172.18.1.0/24"):    "fd00:18:1::",
		netip.MustParsePrefix("192.0.2.0/24"):     "2001:db8:1::",
		netip.MustParsePrefix("198.51.100.0/24"):  "2001:db8:2::",
		netip.MustParsePrefix("127.0.0.0/8"):      "::",
	}
}

// IPv6Of returns the IPv6 counterpart of an IPv4 address, with the same last byte.
func IPv6Of(a netip.Addr) netip.Addr {
	for p, base := range counterpartRanges() {
		if !p.Contains(a) {
			continue
		}
		four := a.As4()
		out := netip.MustParseAddr(base).As16()
		out[15] = four[3]
		if p.Bits() == 16 {
			out[14] = four[2]
		}
		return netip.AddrFrom16(out)
	}
	panic(fmt.Sprintf("the cluster has no IPv6 address for %s", a))
}

// CounterpartPrefix returns the counterpart of a range in the other family. A range of IPv6
// must contain one of the IPv6 ranges.
func CounterpartPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is6() {
		for four, base := range counterpartRanges() {
			if p.Contains(netip.MustParseAddr(base)) {
				return four
			}
		}
	}
	a := IPv6Of(p.Addr())
	switch {
	case p.Addr().IsLoopback():
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	case p.Bits() == 32:
		return netip.PrefixFrom(a, 128)
	case p.Bits() == 24:
		return netip.PrefixFrom(a, 64).Masked()
	}
	return netip.PrefixFrom(a, 112).Masked()
}

const ipv6Suffix = "-v6"

func ipv6TextOf(addr string) string { return IPv6Of(netip.MustParseAddr(addr)).String() }

// IPv6Service returns the same Service for IPv6, under another name.
func IPv6Service(s *v1.Service) *v1.Service {
	t := s.DeepCopy()
	t.Name += ipv6Suffix
	t.Spec.ClusterIP = ipv6TextOf(s.Spec.ClusterIP)
	for i, a := range t.Spec.ExternalIPs {
		t.Spec.ExternalIPs[i] = ipv6TextOf(a)
	}
	for i, r := range t.Spec.LoadBalancerSourceRanges {
		t.Spec.LoadBalancerSourceRanges[i] = CounterpartPrefix(netip.MustParsePrefix(r)).String()
	}
	for i, in := range t.Status.LoadBalancer.Ingress {
		t.Status.LoadBalancer.Ingress[i].IP = ipv6TextOf(in.IP)
	}
	return t
}

// IPv6Slice returns the EndpointSlice of the Service of [IPv6Service].
func IPv6Slice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	t := s.DeepCopy()
	t.Name += ipv6Suffix
	t.Labels[discoveryv1.LabelServiceName] += ipv6Suffix
	t.AddressType = discoveryv1.AddressTypeIPv6
	for i := range t.Endpoints {
		for j, a := range t.Endpoints[i].Addresses {
			t.Endpoints[i].Addresses[j] = ipv6TextOf(a)
		}
	}
	return t
}
