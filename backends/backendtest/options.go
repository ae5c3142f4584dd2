package backendtest

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/proxy"
)

// nodeOptions are the options of a tracker for the node of the testbed, unless
// a scenario has others: pods have addresses in the cluster's range, and node ports
// answer at all addresses.
func nodeOptions() proxy.TrackerOptions {
	return proxy.TrackerOptions{
		NodeName:          string(cluster.Node),
		NodeAddresses:     cluster.Addrs("172.18.0.2", "fd00:18::2"),
		NodePortAddresses: proxy.NodePortAddresses{All: true},
		LocalTraffic:      proxy.LocalTraffic{Sources: cluster.PodRanges()},
	}
}

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
		for _, a := range cluster.Addrs(args...) {
			o.NodeAddresses = append(o.NodeAddresses, a, cluster.IPv6Of(a))
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
		out = append(out, p, cluster.CounterpartPrefix(p))
	}
	return out, nil
}
