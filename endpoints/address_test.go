package endpoints

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestParseAddr(t *testing.T) {
	const v4, v6 = v1.IPv4Protocol, v1.IPv6Protocol
	for _, tc := range []struct {
		in     string
		family v1.IPFamily
		want   string // the address, or ! and a part of the error
	}{
		{"10.0.0.1", v4, "10.0.0.1"},
		{"010.0.0.1", v4, "10.0.0.1"},
		{"010.001.000.0000000008", v4, "10.1.0.8"},
		{"10.0.0.08", v4, "10.0.0.8"},
		{"255.255.255.255", v4, "255.255.255.255"},
		{"::ffff:10.0.0.1", v4, "10.0.0.1"},
		{"::ffff:010.0.0.01", v4, "10.0.0.1"},
		{"2001:db8::1", v6, "2001:db8::1"},
		{"2001:DB8:0:0::1", v6, "2001:db8::1"},
		{"2001:db8::010.0.0.1", v6, "2001:db8::a00:1"},
		{"fd00::1", v6, "fd00::1"},

		{"", v4, "!is not an IP address"},
		{"10.0.0", v4, "!is not an IP address"},
		{"10.0.0.0.1", v4, "!is not an IP address"},
		{"10..0.1", v4, "!is not an IP address"},
		{"10.0.0.", v4, "!is not an IP address"},
		{"010.0.0.256", v4, "!is not an IP address"},
		{"010.0.0.1a", v4, "!is not an IP address"},
		{" 10.0.0.1", v4, "!is not an IP address"},
		{"10.0.0.1:80", v4, "!is not an IP address"},
		{"0x0a.0.0.1", v4, "!is not an IP address"},
		{"-1.0.0.1", v4, "!is not an IP address"},
		{"pod.example.org", v4, "!is not an IP address"},
		{"2001:db8::g", v6, "!is not an IP address"},

		{"2001:db8::1", v4, "!is not an IPv4 address"},
		{"10.0.0.1", v6, "!is not an IPv6 address"},
		{"::ffff:10.0.0.1", v6, "!is not an IPv6 address"},
		{"2001:db8::1%eth0", v6, "!has a zone"},

		{"0.0.0.0", v4, "!unspecified"},
		{"000.0.0.0", v4, "!unspecified"},
		{"0.0.0.1", v4, "!0.0.0.0/8"},
		{"0.64.3.1", v4, "!0.0.0.0/8"},
		{"1.0.0.0", v4, "1.0.0.0"},
		{"127.0.0.1", v4, "!loopback"},
		{"127.255.0.9", v4, "!loopback"},
		{"::ffff:127.0.0.1", v4, "!loopback"},
		{"169.254.0.1", v4, "!link-local"},
		{"224.0.0.1", v4, "!multicast"},
		{"239.1.2.3", v4, "!multicast"},
		{"::", v6, "!unspecified"},
		{"::1", v6, "!loopback"},
		{"100::1", v6, "!100::/64"},
		{"100:0:0:1::1", v6, "100:0:0:1::1"},
		{"fe80::1", v6, "!link-local"},
		{"febf::1", v6, "!link-local"},
		{"ff02::1", v6, "!multicast"},
		{"ff0e::1", v6, "!multicast"},
	} {
		a, err := parseAddr(tc.in, tc.family)
		part, wantErr := strings.CutPrefix(tc.want, "!")
		switch {
		case wantErr && (err == nil || !strings.Contains(err.Error(), part)):
			t.Errorf("parseAddr(%q, %s) = %v, %v; want an error with %q", tc.in, tc.family, a, err, part)
		case !wantErr && (err != nil || a != netip.MustParseAddr(tc.want)):
			t.Errorf("parseAddr(%q, %s) = %v, %v; want %s", tc.in, tc.family, a, err, tc.want)
		}
	}
}
