package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vipkit/vipkit/proxy"
)

func TestTracker(t *testing.T) {
	prefixes := func(all ...string) (out []netip.Prefix) {
		for _, p := range all {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	for name, tc := range map[string]struct {
		mode   string
		change func(*config)
		want   proxy.TrackerOptions
		err    string
	}{
		"nothing":           {mode: nftablesMode},
		"iptables":          {mode: iptablesMode, want: proxy.TrackerOptions{NodePortAddresses: proxy.NodePortAddresses{All: true}}},
		"primary":           {mode: iptablesMode, change: func(c *config) { c.NodePortAddresses = []string{"primary"} }},
		"node port ranges":  {mode: nftablesMode, change: func(c *config) { c.NodePortAddresses = []string{"10.0.0.0/8"} }, want: proxy.TrackerOptions{NodePortAddresses: proxy.NodePortAddresses{Prefixes: prefixes("10.0.0.0/8")}}},
		"node port nowhere": {mode: nftablesMode, change: func(c *config) { c.NodePortAddresses = []string{"x"} }, err: "nodePortAddresses"},
		"pod ranges":        {mode: nftablesMode, change: func(c *config) { c.ClusterCIDR = "10.244.1.1/16, fd00::/56" }, want: proxy.TrackerOptions{LocalTraffic: proxy.LocalTraffic{Sources: prefixes("10.244.0.0/16", "fd00::/56")}}},
		"bad pod range":     {mode: nftablesMode, change: func(c *config) { c.ClusterCIDR = "x" }, err: "clusterCIDR"},
		"node's pod ranges": {mode: nftablesMode, change: func(c *config) { c.DetectLocalMode, c.ClusterCIDR = "NodeCIDR", "x" }, want: proxy.TrackerOptions{LocalTraffic: proxy.LocalTraffic{NodePodCIDRs: true}}},
		"bridge":            {mode: nftablesMode, change: func(c *config) { c.DetectLocalMode, c.DetectLocal.BridgeInterface = "BridgeInterface", "cni0" }, want: proxy.TrackerOptions{LocalTraffic: proxy.LocalTraffic{Interface: "cni0"}}},
		"no bridge":         {mode: nftablesMode, change: func(c *config) { c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = "BridgeInterface", "x" }, err: "takes the name of an interface"},
		"interfaces":        {mode: nftablesMode, change: func(c *config) { c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = "InterfaceNamePrefix", "veth" }, want: proxy.TrackerOptions{LocalTraffic: proxy.LocalTraffic{InterfacePrefix: "veth"}}},
		"unknown detection": {mode: nftablesMode, change: func(c *config) { c.DetectLocalMode = "Magic" }, err: `detectLocalMode: "Magic"`},
		"no external IPs":   {mode: nftablesMode, change: func(c *config) { c.FeatureGates.AllowServiceExternalIPs = new(false) }, want: proxy.TrackerOptions{IgnoreExternalIPs: true}},
		"masquerade":        {mode: nftablesMode, change: func(c *config) { c.NFTables.MasqueradeAll = true }, want: proxy.TrackerOptions{MasqueradeAll: true}},
		"other mode's":      {mode: nftablesMode, change: func(c *config) { c.IPTables.MasqueradeAll = true }},
		"address":           {mode: nftablesMode, change: func(c *config) { c.BindAddress = "192.0.2.1" }, want: proxy.TrackerOptions{NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}},
		"no address":        {mode: nftablesMode, change: func(c *config) { c.BindAddress = "::" }},
		"bad address":       {mode: nftablesMode, change: func(c *config) { c.BindAddress = "host" }, err: "bindAddress"},
		"blank name":        {mode: nftablesMode, change: func(c *config) { c.HostnameOverride = " " }, err: "is blank"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &config{kubeProxyConfiguration: defaults()}
			c.HostnameOverride = " Node-1 "
			if tc.change != nil {
				tc.change(c)
			}
			got, err := c.tracker(tc.mode)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, wanted one with %s", err, tc.err)
				}
				return
			}
			tc.want.NodeName = "node-1"
			equal := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
			if diff := cmp.Diff(tc.want, got, equal, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("error %v, options (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	for _, tc := range []struct {
		serving serving
		want    string
	}{
		{serving{}, "0.0.0.0:10256 127.0.0.1:10249"},
		{serving{BindAddress: "::"}, "[::]:10256 [::1]:10249"},
		{serving{HealthzBindAddress: "127.0.0.1", MetricsBindAddress: "0.0.0.0:9"}, "127.0.0.1:10256 0.0.0.0:9"},
		{serving{HealthzBindAddress: "::", MetricsBindAddress: "[::]"}, "[::]:10256 [::]:10249"},
		{serving{HealthzBindAddress: "host:1"}, "healthzBindAddress"},
		{serving{MetricsBindAddress: "10249"}, "metricsBindAddress"},
	} {
		healthz, metrics, err := tc.serving.addresses()
		got := healthz + " " + metrics
		if err != nil {
			got = err.Error()
		}
		if got != tc.want && (err == nil || !strings.Contains(got, tc.want)) {
			t.Errorf("%+v: got %s, wanted %s", tc.serving, got, tc.want)
		}
	}
}

func TestCandidates(t *testing.T) {
	for mode, want := range map[string]int{"": 2, nftablesMode: 1, iptablesMode: 1, "ipvs": 0} {
		c := &config{kubeProxyConfiguration: defaults()}
		c.Mode = mode
		got, err := c.candidates()
		if len(got) != want || (err == nil) != (want > 0) {
			t.Errorf("mode %q: candidates %v, error %v, wanted %d", mode, got, err, want)
		}
	}
	c := &config{kubeProxyConfiguration: defaults()}
	c.NFTables.MasqueradeBit = 32
	if _, err := c.open(nftablesMode); err == nil || !strings.Contains(err.Error(), "masqueradeBit") {
		t.Errorf("with bit 32 open says %v, wanted that the bit is wrong", err)
	}
}
