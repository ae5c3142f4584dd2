package ipaddr

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

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
