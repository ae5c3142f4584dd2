package agent

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

func TestTracker(t *testing.T) {
	t.Parallel()
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
		"nothing":  {mode: nftablesMode},
		"iptables": {mode: iptablesMode, want: proxy.TrackerOptions{NodePortAddresses: proxy.NodePortAddresses{All: true, Loopback: prefixes("127.0.0.0/8")}}},
		"ipvs": {mode: ipvsMode, change: func(c *config) { c.IPTables.MasqueradeAll = true }, want: proxy.TrackerOptions{
			NodePortAddresses: proxy.NodePortAddresses{All: true}, MasqueradeAll: true, Annotations: []string{ipvs.SchedulerAnnotation},
		}},
		"primary":           {mode: iptablesMode, change: func(c *config) { c.NodePortAddresses = []string{"primary"} }, want: proxy.TrackerOptions{NodePortAddresses: proxy.NodePortAddresses{Primary: true}}},
		"localhost and all": {mode: nftablesMode, change: func(c *config) { c.NodePortAddresses = []string{"localhost", "all"} }, want: proxy.TrackerOptions{NodePortAddresses: proxy.NodePortAddresses{All: true, Loopback: prefixes("127.0.0.0/8", "::1/128")}}},
		"fallback":          {mode: nftablesMode, change: func(c *config) { c.LocalFallback = endpoints.FallbackCluster }, want: proxy.TrackerOptions{LocalFallback: endpoints.FallbackCluster}},
		"node port ranges":  {mode: nftablesMode, change: func(c *config) { c.NodePortAddresses = []string{"10.0.0.0/8"} }, want: proxy.TrackerOptions{NodePortAddresses: proxy.NodePortAddresses{Prefixes: prefixes("10.0.0.0/8")}}},
		"node port nowhere": {mode: nftablesMode, change: func(c *config) { c.NodePortAddresses = []string{"x"} }, err: "nodePortAddresses"},
		"pod ranges":        {mode: nftablesMode, change: func(c *config) { c.ClusterCIDR = "10.244.1.1/16, fd00::/56" }, want: proxy.TrackerOptions{LocalTraffic: proxy.LocalTraffic{Sources: prefixes("10.244.0.0/16", "fd00::/56")}}},
		"bad pod range":     {mode: nftablesMode, change: func(c *config) { c.ClusterCIDR = "x" }, err: "clusterCIDR"},
		"node's pod ranges": {mode: nftablesMode, change: func(c *config) { c.DetectLocalMode, c.ClusterCIDR = "NodeCIDR", "x" }, want: proxy.TrackerOptions{LocalTraffic: proxy.LocalTraffic{NodePodCIDRs: true}}},
		"bridge":            {mode: nftablesMode, change: func(c *config) { c.DetectLocalMode, c.DetectLocal.BridgeInterface = "BridgeInterface", "cni0" }, want: proxy.TrackerOptions{LocalTraffic: proxy.LocalTraffic{Interface: "cni0"}}},
		"no bridge":         {mode: nftablesMode, change: func(c *config) { c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = "BridgeInterface", "x" }, err: "requires an interface name"},
		"interfaces":        {mode: nftablesMode, change: func(c *config) { c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = "InterfaceNamePrefix", "veth" }, want: proxy.TrackerOptions{LocalTraffic: proxy.LocalTraffic{InterfacePrefix: "veth"}}},
		"unknown detection": {mode: nftablesMode, change: func(c *config) { c.DetectLocalMode = "Magic" }, err: `detectLocalMode: "Magic"`},
		"no external IPs":   {mode: nftablesMode, change: func(c *config) { c.FeatureGates = map[string]bool{"AllowServiceExternalIPs": false} }, want: proxy.TrackerOptions{IgnoreExternalIPs: true}},
		"masquerade":        {mode: nftablesMode, change: func(c *config) { c.NFTables.MasqueradeAll = true }, want: proxy.TrackerOptions{MasqueradeAll: true}},
		"other mode's":      {mode: nftablesMode, change: func(c *config) { c.IPTables.MasqueradeAll = true }},
		"address":           {mode: nftablesMode, change: func(c *config) { c.BindAddress = "192.0.2.1" }, want: proxy.TrackerOptions{NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}},
		"no address":        {mode: nftablesMode, change: func(c *config) { c.BindAddress = "::" }},
		"bad address":       {mode: nftablesMode, change: func(c *config) { c.BindAddress = "host" }, err: "bindAddress"},
		"blank name":        {mode: nftablesMode, change: func(c *config) { c.HostnameOverride = " " }, err: "must not be blank"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConfig("linux")
			c.HostnameOverride = " Node-1 "
			if tc.change != nil {
				tc.change(c)
			}
			c.Mode = v1alpha1.ProxyMode(tc.mode)
			err := c.validate(c.settings())
			got := c.tracker(tc.mode)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got error %v, want one with %s", err, tc.err)
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
	t.Parallel()
	type serving struct{ BindAddress, HealthzBindAddress, MetricsBindAddress string }
	for _, tc := range []struct {
		serving          serving
		healthz, metrics int32
		want             string
	}{
		{serving{}, healthzPort, metricsPort, "0.0.0.0:10256 127.0.0.1:10249"},
		{serving{BindAddress: "::"}, healthzPort, metricsPort, "[::]:10256 [::1]:10249"},
		{serving{HealthzBindAddress: "127.0.0.1", MetricsBindAddress: "0.0.0.0:9"}, healthzPort, metricsPort, "127.0.0.1:10256 0.0.0.0:9"},
		{serving{HealthzBindAddress: "::", MetricsBindAddress: "[::]:1"}, healthzPort, metricsPort, "[::]:10256 [::]:1"},
		{serving{HealthzBindAddress: "192.0.2.1"}, 1, 2, "192.0.2.1:1 127.0.0.1:2"},
		{serving{MetricsBindAddress: "192.0.2.1:3"}, 0, 2, " 192.0.2.1:3"},
		{serving{MetricsBindAddress: "192.0.2.1:3"}, 1, 0, "0.0.0.0:1 "},
		{serving{HealthzBindAddress: "host:1"}, healthzPort, metricsPort, "healthzBindAddress"},
		{serving{MetricsBindAddress: "[::]"}, healthzPort, metricsPort, "metricsBindAddress"},
		{serving{MetricsBindAddress: "10249"}, healthzPort, metricsPort, "metricsBindAddress"},
	} {
		c := newConfig("linux")
		c.BindAddress, c.HealthzBindAddress, c.MetricsBindAddress = tc.serving.BindAddress, tc.serving.HealthzBindAddress, tc.serving.MetricsBindAddress
		c.healthzPort, c.metricsPort = tc.healthz, tc.metrics
		got := ""
		if err := c.validate(c.settings()); err != nil {
			got = err.Error()
		} else {
			got = c.healthzAddress + " " + c.metricsAddress
		}
		if got != tc.want && !strings.HasPrefix(got, tc.want+": ") {
			t.Errorf("%+v: got %s, want %s", tc.serving, got, tc.want)
		}
	}
}

// TestBadSections checks that the error for a section with bad values names the field.
func TestBadSections(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		mode   string
		change func(*config)
		want   string
	}{
		{nftablesMode, func(c *config) { *c.NFTables.MasqueradeBit = 32 }, "nftables.masqueradeBit: 32"},
		{ipvsMode, func(c *config) { *c.IPTables.MasqueradeBit = 32 }, "iptables.masqueradeBit: 32"},
		{ipvsMode, func(c *config) { *c.NFTables.MasqueradeBit = 32 }, "nftables.masqueradeBit: 32"}, // It serves if the node lacks IPVS.
		{"userspace", func(*config) {}, `mode "userspace": want nftables`},
		{ipvsMode, func(c *config) { c.IPVS.Scheduler = "fast" }, `ipvs.scheduler: unknown scheduler "fast", want one of [rr `},
		{ipvsMode, func(c *config) { c.IPVS.Scheduler = "mh,port" }, `ipvs.scheduler: unknown flag "port" of scheduler "mh"`},
		{ipvsMode, func(c *config) { c.IPVS.Scheduler = "rr,rr-port" }, `ipvs.scheduler: unknown flag "rr-port" of scheduler "rr"`},
		{ipvsMode, func(c *config) { c.IPVS.TCPTimeout.Duration = 720 * time.Hour }, "ipvs.tcpTimeout: 720h0m0s: must be at most 596h31m23s"},
		{ipvsMode, func(c *config) { c.IPVS.SyncPeriod.Duration = -time.Second }, "ipvs.syncPeriod: -1s is negative"},
		{ipvsMode, func(c *config) { c.IPVS.MinSyncPeriod.Duration = -time.Second }, "ipvs.minSyncPeriod: -1s is negative"},
		{nftablesMode, func(c *config) { c.NFTables.SyncPeriod.Duration = -1 }, "nftables.syncPeriod: -1ns is negative"},
		{ipvsMode, func(c *config) { c.IPVS.TCPTimeout.Duration = -time.Second }, "ipvs.tcpTimeout: -1s: must be greater than or equal to 0"},
		{ipvsMode, func(c *config) { c.IPVS.TCPFinTimeout.Duration = -1 }, "ipvs.tcpFinTimeout: -1ns: must be"},
		{ipvsMode, func(c *config) { c.IPVS.UDPTimeout.Duration = -time.Hour }, "ipvs.udpTimeout: -1h0m0s: must be"},
	} {
		c := newConfig("linux")
		tc.change(c)
		c.Mode = v1alpha1.ProxyMode(tc.mode)
		if err := c.validate(c.settings()); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("mode %s: got error %v, want one with %s", tc.mode, err, tc.want)
		}
	}
}

// TestIPVSOptions checks what becomes the options of the backend. The scheduler mh is as kube-proxy
// sets it, and so is the unit of timeouts, the kernel's.
func TestIPVSOptions(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"": "", "wlc": "wlc", "mh": "mh,mh-port", "mh,mh-fallback": "mh,mh-fallback", "sh": "sh", "sh,sh-port": "sh,sh-port"} {
		c := newConfig("linux")
		c.Mode, c.DrainTimeout = ipvsMode, time.Hour
		c.IPVS.Scheduler, c.IPVS.StrictARP, *c.IPTables.MasqueradeBit = given, true, 7
		c.IPVS.TCPTimeout.Duration, c.IPVS.UDPTimeout.Duration = 1900*time.Millisecond, time.Millisecond
		wanted := ipvs.Options{Identity: backends.Identity{Mark: 1 << 7}, Scheduler: want, DrainTimeout: time.Hour, StrictARP: true, TCPTimeout: time.Second}
		err := c.validate(c.settings())
		if diff := cmp.Diff(wanted, c.ipvsOptions()); err != nil || diff != "" {
			t.Errorf("scheduler %q: got error %v; options (-want +got):\n%s", given, err, diff)
		}
	}
}
