package ipaddr

import (
	"errors"
	"net/netip"
	"testing"
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
