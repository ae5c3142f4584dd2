package endpoints

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestCompareOrder lists endpoints in their order.
func TestCompareOrder(t *testing.T) {
	at := func(addr string, change func(*Endpoint)) Endpoint {
		e := Endpoint{Addr: netip.MustParseAddrPort(addr), Ready: true, Serving: true}
		change(&e)
		return e
	}
	ordered := []Endpoint{
		at("10.0.0.1:80", func(e *Endpoint) { e.Terminating = true }),
		at("10.0.0.1:81", func(e *Endpoint) { e.Local = true }),
		at("10.0.0.1:81", func(*Endpoint) {}),
		at("10.0.0.1:81", func(e *Endpoint) { e.ZoneHint = HintElsewhere }),
		at("10.0.0.1:81", func(e *Endpoint) { e.ZoneHint = HintHere }),
		at("10.0.0.1:81", func(e *Endpoint) { e.NodeHint = HintElsewhere }),
		at("10.0.0.1:81", func(e *Endpoint) { e.NodeName = "a"; e.Local = true }),
		at("10.0.0.1:81", func(e *Endpoint) { e.NodeName = "b" }),
		at("10.0.0.1:81", func(e *Endpoint) { e.Serving = false }),
		at("10.0.0.1:81", func(e *Endpoint) { e.Ready = false }),
		at("10.0.0.1:81", func(e *Endpoint) { e.Ready, e.Serving = false, false }),
		at("10.0.0.1:81", func(e *Endpoint) { e.Terminating = true }),
		at("10.0.0.1:81", func(e *Endpoint) { e.Ready, e.Terminating = false, true }),
		at("10.0.0.2:80", func(*Endpoint) {}),
		at("10.0.0.10:80", func(*Endpoint) {}),
		at("[2001:db8::1]:80", func(*Endpoint) {}),
	}
	for i := range ordered {
		for j := range ordered {
			want := 0
			switch {
			case i < j:
				want = -1
			case i > j:
				want = 1
			}
			testenv.Same(t, want, ordered[i].Compare(&ordered[j]), "Compare(%v, %v)", ordered[i], ordered[j])
		}
	}
}

// TestCompareIsTotal: sorting has the same result for any initial order, and Compare
// returns 0 only for equal endpoints.
func TestCompareIsTotal(t *testing.T) {
	r := testenv.Random(t)
	list := make([]*Endpoint, 300)
	for i := range list {
		list[i] = &Endpoint{
			Addr:     netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(2))}), uint16(1+r.IntN(2))),
			NodeName: []string{"", "a", "b"}[r.IntN(3)],
			Ready:    r.IntN(2) == 0, Serving: r.IntN(2) == 0, Terminating: r.IntN(2) == 0, Local: r.IntN(2) == 0,
			ZoneHint: Hint(r.IntN(3)), NodeHint: Hint(r.IntN(3)),
		}
	}
	sortEndpoints(list)
	for range 20 {
		other := slices.Clone(list)
		r.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
		sortEndpoints(other)
		if !slices.EqualFunc(list, other, same) {
			t.Fatalf("got two orders of the same endpoints:\n%q\n%q", text(list), text(other))
		}
	}
	for i := range list[1:] {
		if equal := *list[i] == *list[i+1]; (list[i].Compare(list[i+1]) == 0) != equal {
			t.Errorf("Compare(%v, %v) disagrees with ==", *list[i], *list[i+1])
		}
	}
}

func TestEndpointString(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:80")
	for _, c := range []struct {
		endpoint *Endpoint
		want     string
	}{
		{&Endpoint{Addr: at, Ready: true, Serving: true, Local: true, NodeName: "node-1"}, "10.0.0.1:80 (ready, local, on node-1)"},
		{&Endpoint{Addr: at, Serving: true, Terminating: true}, "10.0.0.1:80 (not ready, serving, terminating)"},
		{&Endpoint{Addr: at, Ready: true, NodeHint: HintElsewhere, ZoneHint: HintHere}, "10.0.0.1:80 (ready, node hint elsewhere, zone hint here)"},
		{&Endpoint{Addr: at}, "10.0.0.1:80 (not ready)"},
		{nil, "none"},
	} {
		if got := c.endpoint.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestParseAddr(t *testing.T) { //nolint:funlen // a table
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

func TestEnumerationsInJSON(t *testing.T) {
	testenv.RoundTrip(t, HintNone, HintHere)
	testenv.RoundTrip(t, FallbackTerminating, FallbackCluster)
}
