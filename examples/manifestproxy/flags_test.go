package main

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vipkit/vipkit/proxy"
)

func TestBadFlags(t *testing.T) {
	for _, c := range []struct{ flags, want string }{
		{"", "-manifests is required"},
		{"-once", "-manifests is required"},
		{"-manifests m -backend ipvs", `"ipvs" for flag -backend: there is no such backend, only iptables, nftables, userspace`},
		{"-manifests m -once -backend userspace", "-once excludes this backend"},
		{"-manifests m -backend userspace -capture pcap", `"pcap" for flag -capture: there is no such way, only tproxy, redirect, routes`},
		{"-manifests m -capture routes", "-capture is for -backend userspace"},
		{"-manifests m -drain 30s", "-drain is for -backend userspace"},
		{"-manifests m -backend userspace -drain=-1s", `"-1s" for flag -drain: it is negative`},
		{"-manifests m -once -cleanup", "exclude each other"},
		{"-manifests m n", `unexpected argument "n"`},
		{"-manifests m -cluster-cidr 10.0.0.0/8,10.1.0.0", `"10.0.0.0/8,10.1.0.0" for flag -cluster-cidr`},
		{"-manifests m -service-cidr 10.0.0.0/33", `"10.0.0.0/33" for flag -service-cidr`},
		{"-manifests m -node-ip 192.0.2.1,", `"192.0.2.1," for flag -node-ip`},
		{"-manifests m -node-ip fe80::1%eth0", "fe80::1%eth0 has a zone"},
		{"-manifests m -nodeport-addresses all,primary", `"all,primary" for flag -nodeport-addresses`},
		{"-manifests m -v=-1", `"-1" for flag -v`},
		{"-manifest m", "not defined: -manifest"},
	} {
		t.Run(c.flags, func(t *testing.T) {
			var out strings.Builder
			if status := run(strings.Fields(c.flags), &out); status != 2 {
				t.Errorf("status is %d, wanted 2", status)
			}
			if got := out.String(); !strings.Contains(got, c.want) || !strings.Contains(got, "\nUsage of manifestproxy:\n") {
				t.Errorf("it says\n%s\nwanted %s, and the usage", got, c.want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	var out strings.Builder
	if status := run([]string{"-help"}, &out); status != 0 {
		t.Errorf("status is %d, wanted 0", status)
	}
	for _, flag := range []string{
		"-backend", "-manifests", "-node", "-cluster-cidr", "-masquerade-all", "-nodeport-addresses", "-service-cidr",
		"-node-ip", "-once", "-cleanup", "-drain", "-v", "-healthz-bind-address", "-metrics-bind-address",
	} {
		if !strings.Contains(out.String(), "\n  "+flag) {
			t.Errorf("the usage lacks %s:\n%s", flag, out.String())
		}
	}
}

func TestFlags(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags string
		want  options
	}{
		{"-manifests m", options{manifests: "m", tracker: proxy.TrackerOptions{NodeName: strings.ToLower(host)}}},
		{"-cleanup -backend nftables", options{cleanup: true}},
		{"-cleanup -healthz-bind-address :1 -metrics-bind-address :2", options{cleanup: true, healthz: ":1", metrics: ":2"}},
		{
			"-manifests m -node n -once -v 2 -masquerade-all -cluster-cidr 10.1.2.3/16,fd00::/64 -service-cidr 10.96.0.0/16 " +
				"-node-ip 192.0.2.1,::ffff:192.0.2.2,2001:db8::1 -nodeport-addresses 192.0.2.0/24,2001:db8::/32",
			options{manifests: "m", once: true, verbosity: 2, tracker: proxy.TrackerOptions{
				NodeName:          "n",
				MasqueradeAll:     true,
				LocalTraffic:      proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/64")}},
				ServiceCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
				NodeAddresses:     []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1")},
				NodePortAddresses: proxy.NodePortAddresses{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}},
			}},
		},
		{"-manifests m -node n -nodeport-addresses primary", options{manifests: "m", tracker: proxy.TrackerOptions{NodeName: "n"}}},
		{"-manifests m -node n -nodeport-addresses all", options{manifests: "m", tracker: proxy.TrackerOptions{
			NodeName: "n", NodePortAddresses: proxy.NodePortAddresses{All: true},
		}}},
	} {
		var out strings.Builder
		got, err := parseFlags(strings.Fields(c.flags), &out)
		if err != nil {
			t.Errorf("%s: %v\n%s", c.flags, err, out.String())
			continue
		}
		if got.backend.open == nil {
			t.Errorf("%s: no backend is chosen", c.flags)
		}
		diff := cmp.Diff(c.want, got, cmp.AllowUnexported(options{}), cmpopts.IgnoreFields(options{}, "backend"),
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
		if diff != "" {
			t.Errorf("%s: want (-) and got (+) differ:\n%s", c.flags, diff)
		}
	}
}
