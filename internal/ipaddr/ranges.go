package ipaddr

import (
	"net/netip"
	"slices"
)

// Range is the addresses from First to Last, both included.
type Range struct{ First, Last netip.Addr }

// Ranges returns the addresses of prefixes of one family as sorted ranges with gaps
// between them. Equal sets of addresses give equal ranges.
func Ranges(prefixes []netip.Prefix) []Range {
	sorted := slices.SortedFunc(slices.Values(prefixes), func(a, b netip.Prefix) int { return a.Masked().Compare(b.Masked()) })
	var out []Range
	for _, p := range sorted {
		r := Range{p.Masked().Addr(), lastOf(p)}
		if n := len(out) - 1; n >= 0 && out[n].reaches(r.First) {
			if out[n].Last.Less(r.Last) {
				out[n].Last = r.Last
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// reaches reports whether a, which is not before r.First, is in the range or right
// after it.
func (r *Range) reaches(a netip.Addr) bool {
	return !r.Last.Less(a) || r.Last.Next() == a
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
