package ipaddr

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1":            "10.0.0.1",
		"010.000.00.001":      "10.0.0.1",
		"0.0.0.0":             "0.0.0.0",
		"::ffff:10.0.0.1":     "10.0.0.1",
		"::ffff:010.0.0.01":   "10.0.0.1",
		"fd00::1":             "fd00::1",
		"fd00:0000::0001":     "fd00::1",
		"":                    "",
		"10.0.0":              "",
		"10.0.0.256":          "",
		"10.0.0.1/8":          "",
		" 10.0.0.1":           "",
		"fe80::1%eth0":        "",
		"10.0.0.0x1":          "",
		"garbage.with.dots.0": "",
		".":                   "",
	} {
		a, err := Parse(in)
		switch {
		case want == "" && err == nil:
			t.Errorf("Parse(%q) = %v, want an error", in, a)
		case want != "" && (err != nil || a.String() != want):
			t.Errorf("Parse(%q) = %v, %v, want %s", in, a, err, want)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	for in, want := range map[string]string{
		"10.1.2.3/8":              "10.0.0.0/8",
		"010.0.0.0/08":            "10.0.0.0/8",
		"0.0.0.0/0":               "0.0.0.0/0",
		"::ffff:10.0.0.0/104":     "10.0.0.0/8",
		"::ffff:10.0.0.0/95":      "",
		"2001:db8::1/32":          "2001:db8::/32",
		"10.0.0.0":                "",
		"10.0.0.0/33":             "",
		"10.0.0.0/-1":             "",
		"10.0.0.0/300":            "",
		"garbage":                 "",
		"x/8":                     "",
		"10.0.0.0/8 ":             "",
		"2001:db8::/129":          "",
		"2001:db8::%eth0/64":      "",
		"255.255.255.255/32":      "255.255.255.255/32",
		"10.0.0.0/8/8":            "",
		"10.0.0.0/99999999999999": "",
	} {
		p, err := ParsePrefix(in)
		switch {
		case want == "" && err == nil:
			t.Errorf("ParsePrefix(%q) = %v, want an error", in, p)
		case want != "" && (err != nil || p.String() != want):
			t.Errorf("ParsePrefix(%q) = %v, %v, want %s", in, p, err, want)
		}
	}
}

func TestCheckHost(t *testing.T) {
	for in, want := range map[string]error{
		"10.0.0.1": nil, "fd00::1": nil, "100.64.0.1": nil,
		"0.0.0.0": errUnspecified, "::": errUnspecified,
		"127.8.0.1": errLoopback, "::1": errLoopback,
		"169.254.1.1": errLinkLocal, "fe80::1": errLinkLocal,
		"224.0.0.1": errMulticast, "ff02::1": errMulticast, "239.255.255.255": errMulticast,
	} {
		if err := CheckHost(netip.MustParseAddr(in)); !errors.Is(err, want) {
			t.Errorf("CheckHost(%s) = %v, want %v", in, err, want)
		}
	}
}

func TestCheckVirtualIP(t *testing.T) {
	for in, want := range map[string]struct{ virtual, external error }{
		"198.51.100.1": {}, "2001:db8::1": {}, "f000::1": {}, "::2": {}, "1.0.0.0": {}, "223.255.255.255": {},
		"0.0.0.0":         {errUnspecified, errUnspecified},
		"0.0.0.1":         {errThisNetwork, errThisNetwork},
		"0.255.255.255":   {errThisNetwork, errThisNetwork},
		"224.0.0.1":       {errMulticast, errMulticast},
		"240.0.0.0":       {nil, errReserved},
		"255.255.255.254": {nil, errReserved},
		"255.255.255.255": {errBroadcast, errBroadcast},
		"::1":             {errLoopback, errLoopback},
	} {
		a := netip.MustParseAddr(in)
		if err := CheckVirtualIP(a); !errors.Is(err, want.virtual) {
			t.Errorf("CheckVirtualIP(%s) = %v, want %v", in, err, want.virtual)
		}
		if err := CheckExternalIP(a); !errors.Is(err, want.external) {
			t.Errorf("CheckExternalIP(%s) = %v, want %v", in, err, want.external)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("010.0.0.1")
	f.Add("::ffff:1.2.3.4/100")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := Parse(s)
		if err == nil && (!a.IsValid() || a.Is4In6() || a.Zone() != "") {
			t.Errorf("Parse(%q) = %v", s, a)
		}
		p, err := ParsePrefix(s)
		if err == nil && (!p.IsValid() || p != p.Masked()) {
			t.Errorf("ParsePrefix(%q) = %v", s, p)
		}
	})
}

func TestIsListener(t *testing.T) {
	for text, want := range map[string]bool{
		"0.64.3.1": true, "0.0.0.0": true, "1.0.0.0": false, "127.64.3.1": false,
		"100::1": true, "100::ffff:1": true, "100:0:0:1::1": false, "::1": false, "64:ff9b::1": false,
	} {
		if got := IsListener(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

func TestProtocolNumber(t *testing.T) {
	want := map[v1.Protocol]uint8{v1.ProtocolTCP: 6, v1.ProtocolUDP: 17, v1.ProtocolSCTP: 132, "": 0, "tcp": 0, "ICMP": 0}
	for p, n := range want {
		testenv.Same(t, n, ProtocolNumber(p), "protocol %q", p)
	}
}

func TestRanges(t *testing.T) {
	for in, want := range map[string]string{
		"":                                      "",
		"192.0.2.0/24":                          "192.0.2.0-192.0.2.255",
		"192.0.2.77/24 192.0.2.0/25":            "192.0.2.0-192.0.2.255",
		"192.0.2.128/25 192.0.2.0/25":           "192.0.2.0-192.0.2.255",
		"192.0.2.0/32 192.0.2.2/32":             "192.0.2.0-192.0.2.0 192.0.2.2-192.0.2.2",
		"10.0.0.0/8 0.0.0.0/0 192.0.2.0/24":     "0.0.0.0-255.255.255.255",
		"255.255.255.255/32 0.0.0.0/32":         "0.0.0.0-0.0.0.0 255.255.255.255-255.255.255.255",
		"2001:db8::/33 2001:db8:8000::/33":      "2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
		"::/0 2001:db8::/32":                    "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"192.0.2.0/30 192.0.2.4/30 10.0.0.1/32": "10.0.0.1-10.0.0.1 192.0.2.0-192.0.2.7",
	} {
		var prefixes []netip.Prefix
		for p := range strings.FieldsSeq(in) {
			prefixes = append(prefixes, netip.MustParsePrefix(p))
		}
		var got []string
		for _, r := range Ranges(prefixes) {
			got = append(got, fmt.Sprintf("%v-%v", r.First, r.Last))
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("Ranges(%s) = %s, want %s", in, got, want)
		}
	}
}

// Ranges contain exactly the addresses of the prefixes, in whatever order these are.
func TestRangesContainSameAddresses(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		prefixes := make([]netip.Prefix, random.IntN(6))
		for i := range prefixes {
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(16))})
			prefixes[i] = netip.PrefixFrom(a, 32-random.IntN(5))
		}
		ranges := Ranges(prefixes)
		for i := range 32 {
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
			want := slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
			got := slices.ContainsFunc(ranges, func(r Range) bool { return !a.Less(r.First) && !r.Last.Less(a) })
			if got != want {
				t.Fatalf("seed %d: ranges of %v contain %v: got %v, want %v", seed, prefixes, a, got, want)
			}
		}
		random.Shuffle(len(prefixes), func(i, j int) { prefixes[i], prefixes[j] = prefixes[j], prefixes[i] })
		if again := Ranges(prefixes); !slices.Equal(ranges, again) {
			t.Fatalf("seed %d: Ranges(%v), the same prefixes in another order: got %v, want %v", seed, prefixes, again, ranges)
		}
	}
}
