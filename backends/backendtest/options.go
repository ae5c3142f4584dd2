package backendtest

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// nodeOptions are the options of a tracker for the node of the testbed, unless
// a scenario has others: pods have addresses in the cluster's range, and node ports
// answer at all addresses.
func nodeOptions() proxy.TrackerOptions {
	return proxy.TrackerOptions{
		NodeName:          string(atNode),
		NodeAddresses:     addrs("172.18.0.2", "fd00:18::2"),
		NodePortAddresses: proxy.NodePortAddresses{All: true},
		LocalTraffic:      proxy.LocalTraffic{Sources: podRanges()},
	}
}

// podRanges are the ranges of the pods of all nodes.
func podRanges() []netip.Prefix { return snapshots.Prefixes("10.0.0.0/8", "fd00:10::/32") }

// parseOptions parses the options of a scenario, one on a line. A prefix of IPv4 also adds
// its counterpart of IPv6.
func parseOptions(text string) (proxy.TrackerOptions, error) {
	o := nodeOptions()
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if err := parseOption(&o, f[0], f[1:]); err != nil {
			return o, fmt.Errorf("option %s: %w", f[0], err)
		}
	}
	return o, nil
}

func parseOption(o *proxy.TrackerOptions, name string, args []string) (err error) {
	switch name {
	case "masquerade-all":
		o.MasqueradeAll = true
	case "service-cidrs":
		o.ServiceCIDRs, err = bothFamilies(args)
	case "node-addresses":
		o.NodeAddresses = nil
		for _, a := range addrs(args...) {
			o.NodeAddresses = append(o.NodeAddresses, a, ipv6Of(a))
		}
	case "node-ports":
		var at proxy.NodePortAddresses
		if at, err = proxy.ParseNodePortAddresses(args...); err == nil && len(at.Prefixes) > 0 {
			at.Prefixes, err = bothFamilies(args)
			// Prefixes may contain loopback addresses, but a backend does not serve them; where
			// they are named, the backend of Config.Loopback does.
			at.Loopback = nil
		}
		o.NodePortAddresses = at
	case "pods":
		o.LocalTraffic = proxy.LocalTraffic{}
		for _, a := range args {
			if name, ok := strings.CutPrefix(a, "interface:"); ok {
				o.LocalTraffic.Interface = name
			} else if name, ok := strings.CutPrefix(a, "prefix:"); ok {
				o.LocalTraffic.InterfacePrefix = name
			} else {
				return fmt.Errorf("%q is neither interface:NAME nor prefix:NAME", a)
			}
		}
	case "local-fallback":
		fallbacks := map[string]endpoints.LocalFallback{
			"terminating": endpoints.FallbackTerminating, "none": endpoints.FallbackNone, "cluster": endpoints.FallbackCluster,
		}
		var ok bool
		if o.LocalFallback, ok = fallbacks[strings.Join(args, " ")]; !ok {
			return fmt.Errorf("unknown fallback %q", args)
		}
	default:
		return fmt.Errorf("unknown option")
	}
	return err
}

// bothFamilies reads IPv4 prefixes, and adds to each its IPv6 counterpart.
func bothFamilies(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		out = append(out, p, counterpartPrefix(p))
	}
	return out, nil
}

// Scenarios are written for IPv4. Each has a counterpart for IPv6, in which every
// address is replaced by one of the same host.

// counterpartRanges pairs ranges of IPv4 and IPv6; the last bytes of addresses are equal.
func counterpartRanges() map[netip.Prefix]string {
	return map[netip.Prefix]string{
		netip.MustParsePrefix("10.96.0.0/16"):     "fd00:96::",
		netip.MustParsePrefix("203.0.113.0/25"):   "2001:db8:e::",
		netip.MustParsePrefix("203.0.113.128/25"): "2001:db8:f::",
		netip.MustParsePrefix("10.0.0.0/24"):      "fd00:10::",
		netip.MustParsePrefix("10.1.0.0/24"):      "fd00:10:1::",
		netip.MustParsePrefix("172.18.0.0/24"):    "fd00:18::",
		netip.MustParsePrefix("172.18.1.0/24"):    "fd00:18:1::",
		netip.MustParsePrefix("192.0.2.0/24"):     "2001:db8:1::",
		netip.MustParsePrefix("198.51.100.0/24"):  "2001:db8:2::",
		netip.MustParsePrefix("127.0.0.0/8"):      "::",
	}
}

// ipv6Of returns the IPv6 counterpart of an IPv4 address, with the same last byte.
func ipv6Of(a netip.Addr) netip.Addr {
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
	panic(fmt.Sprintf("backendtest: the testbed has no IPv6 address for %s", a))
}

// counterpartPrefix returns the counterpart of a range in the other family. A range of IPv6
// must contain one of the IPv6 ranges.
func counterpartPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is6() {
		for four, base := range counterpartRanges() {
			if p.Contains(netip.MustParseAddr(base)) {
				return four
			}
		}
	}
	a := ipv6Of(p.Addr())
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
