package nft

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Chains that differ in any part have different hashes.
func TestChainHashesDiffer(t *testing.T) {
	t.Parallel()
	drop, accept := (*Assembler).Drop, (*Assembler).Accept
	rules := func(all ...[]func(*Assembler) Statement) func(*Assembler) {
		return func(a *Assembler) {
			for _, parts := range all {
				var rule []Statement
				for _, p := range parts {
					rule = append(rule, p(a))
				}
				a.Rule(rule...)
			}
		}
	}
	type rule = []func(*Assembler) Statement
	base := nfnetlink.BaseChain{Type: "filter", Hook: nfnetlink.Prerouting, Priority: 1}
	seen := map[uint64]string{}
	for name, c := range map[string]Chain{
		"nothing":               {Rules: rules()},
		"a base":                {Base: base, Rules: rules()},
		"another type":          {Base: nfnetlink.BaseChain{Type: "route", Hook: base.Hook, Priority: base.Priority}, Rules: rules()},
		"another hook":          {Base: nfnetlink.BaseChain{Type: base.Type, Hook: nfnetlink.Output, Priority: base.Priority}, Rules: rules()},
		"another priority":      {Base: nfnetlink.BaseChain{Type: base.Type, Hook: base.Hook, Priority: 2}, Rules: rules()},
		"a priority far away":   {Base: nfnetlink.BaseChain{Type: base.Type, Hook: base.Hook, Priority: 0x101}, Rules: rules()},
		"a rule":                {Base: base, Rules: rules(rule{drop})},
		"a rule of two":         {Base: base, Rules: rules(rule{drop, accept})},
		"two rules":             {Base: base, Rules: rules(rule{drop}, rule{accept})},
		"two rules, other ends": {Base: base, Rules: rules(rule{accept}, rule{drop})},
	} {
		for _, fam := range Families() {
			h := c.Hash(fam)
			if other, twice := seen[h]; twice {
				t.Errorf("hash of %q in family %v: got that of %q, want another one", name, fam, other)
			}
			seen[h] = name
		}
	}
}

// DestIn matches the addresses that a prefix contains, even if bits after the prefix length
// are set.
func TestPrefixesMatch(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	matched := 0
	for range 5000 {
		s := Assembler{Family: nfnetlink.IPv4}
		some := netip.AddrFrom4([4]byte{10, byte(r.IntN(256)), byte(r.IntN(256)), byte(r.IntN(256))})
		if r.IntN(2) == 0 {
			s.Family = nfnetlink.IPv6
			some = netip.AddrFrom16([16]byte{0xfd, 0, byte(r.IntN(256)), byte(r.IntN(256)), 15: byte(r.IntN(256))})
		}
		p := netip.PrefixFrom(some, r.IntN(some.BitLen()+1))
		other := some.AsSlice()
		if bit := r.IntN(some.BitLen()); r.IntN(4) != 0 {
			other[bit/8] ^= 0x80 >> (bit % 8)
		}
		a, _ := netip.AddrFromSlice(other)
		got, want := does(t, s.DestIn(p), a), p.Contains(a)
		if got != want {
			t.Fatalf("DestIn(%v) matches %v: got %v, want %v", p, a, got, want)
		}
		if want {
			matched++
		}
	}
	if matched < 500 {
		t.Errorf("matching addresses: got %d of 5000, want at least 500 so that the test means something", matched)
	}
}

// does reports whether a statement that loads an address, and may mask it, matches.
func does(t *testing.T, s Statement, a netip.Addr) bool {
	t.Helper()
	loaded := a.AsSlice()
	for _, e := range attributes(t, s)[1:] {
		parts := map[uint16][]byte{}
		for _, p := range attributes(t, e.Value) {
			parts[p.Attr.Type&nl.NLA_TYPE_MASK] = p.Value
		}
		data := map[uint16][]byte{}
		for _, p := range attributes(t, parts[unix.NFTA_EXPR_DATA]) {
			data[p.Attr.Type&nl.NLA_TYPE_MASK] = p.Value
		}
		value := func(kind uint16) []byte { return attributes(t, data[kind])[0].Value }
		switch name := string(parts[unix.NFTA_EXPR_NAME]); name {
		case "bitwise\x00":
			mask, xor := value(unix.NFTA_BITWISE_MASK), value(unix.NFTA_BITWISE_XOR)
			for i := range loaded {
				loaded[i] = loaded[i]&mask[i] ^ xor[i]
			}
		case "cmp\x00":
			return string(loaded) == string(value(unix.NFTA_CMP_DATA))
		default:
			t.Fatalf("expression of a prefix match: got %q, want bitwise or cmp", name)
		}
	}
	return true
}

func attributes(t *testing.T, b []byte) []syscall.NetlinkRouteAttr {
	t.Helper()
	all, err := nl.ParseRouteAttr(b)
	testenv.NoError(t, err)
	return all
}
