package userspace

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Chains that differ in anything are not taken for the same.
func TestChainsDifferByAll(t *testing.T) {
	verdict := func(kind expr.VerdictKind) expr.Any { return &expr.Verdict{Kind: kind} }
	drop, accept := verdict(expr.VerdictDrop), verdict(expr.VerdictAccept)
	base := nfnetlink.BaseChain{Type: "filter", Hook: nfnetlink.Prerouting, Priority: 1}
	seen := map[uint64]string{}
	for name, c := range map[string]chainDefinition{
		"nothing":               {},
		"a base":                {base: base},
		"another type":          {base: nfnetlink.BaseChain{Type: "route", Hook: base.Hook, Priority: base.Priority}},
		"another hook":          {base: nfnetlink.BaseChain{Type: base.Type, Hook: nfnetlink.Output, Priority: base.Priority}},
		"another priority":      {base: nfnetlink.BaseChain{Type: base.Type, Hook: base.Hook, Priority: 2}},
		"a priority far away":   {base: nfnetlink.BaseChain{Type: base.Type, Hook: base.Hook, Priority: 0x101}},
		"a rule":                {base: base, rules: []rule{{drop}}},
		"a rule of two":         {base: base, rules: []rule{{drop, accept}}},
		"two rules":             {base: base, rules: []rule{{drop}, {accept}}},
		"two rules, other ends": {base: base, rules: []rule{{accept}, {drop}}},
	} {
		for _, fam := range allFamilies() {
			h := c.hash(fam)
			if other, twice := seen[h]; twice {
				t.Errorf("%s in family %v is taken for %s", name, fam, other)
			}
			seen[h] = name
		}
	}
}

// A prefix matches the addresses that it contains, be it written with more bits than
// it has.
func TestPrefixesMatch(t *testing.T) {
	r := testenv.Random(t)
	matched := 0
	for range 5000 {
		s := statements{fam: nfnetlink.IPv4}
		some := netip.AddrFrom4([4]byte{10, byte(r.IntN(256)), byte(r.IntN(256)), byte(r.IntN(256))})
		if r.IntN(2) == 0 {
			s.fam = nfnetlink.IPv6
			some = netip.AddrFrom16([16]byte{0xfd, 0, byte(r.IntN(256)), byte(r.IntN(256)), 15: byte(r.IntN(256))})
		}
		p := netip.PrefixFrom(some, r.IntN(some.BitLen()+1))
		other := some.AsSlice()
		if bit := r.IntN(some.BitLen()); r.IntN(4) != 0 {
			other[bit/8] ^= 0x80 >> (bit % 8)
		}
		a, _ := netip.AddrFromSlice(other)
		got, want := does(t, s.destination(p, expr.CmpOpEq), a), p.Contains(a)
		if got != want {
			t.Fatalf("%v and %v: got %v, want %v", p, a, got, want)
		}
		if want {
			matched++
		}
	}
	if matched < 500 {
		t.Errorf("only %d of 5000 addresses match; the test shows nothing", matched)
	}
}

// does says whether a rule that loads an address, and may mask it, matches.
func does(t *testing.T, r rule, a netip.Addr) bool {
	t.Helper()
	loaded := a.AsSlice()
	for _, e := range r[1:] {
		switch e := e.(type) {
		case *expr.Bitwise:
			for i := range loaded {
				loaded[i] = loaded[i]&e.Mask[i] ^ e.Xor[i]
			}
		case *expr.Cmp:
			return string(loaded) == string(e.Data)
		default:
			t.Fatalf("a prefix is matched by a %T", e)
		}
	}
	return true
}

// Base chains stand where they are said to, moved by what the identity says; that it
// says something else now is noticed by who comes later.
func TestPlacesOfChains(t *testing.T) {
	for capture, want := range map[Capture]map[string]nfnetlink.BaseChain{
		TPROXY: {
			chainPrerouting:  {Type: "filter", Hook: nfnetlink.Prerouting, Priority: -140},
			chainOutput:      {Type: "route", Hook: nfnetlink.Output, Priority: -140},
			chainPostrouting: {Type: "filter", Hook: nfnetlink.Postrouting, Priority: -140},
			chainBridged:     {Type: "nat", Hook: nfnetlink.Prerouting, Priority: -100},
		},
		Redirect: {
			chainPrerouting: {Type: "nat", Hook: nfnetlink.Prerouting, Priority: -100},
			chainOutput:     {Type: "nat", Hook: nfnetlink.Output, Priority: -100},
		},
	} {
		ns := netnstest.NewNS(t)
		for _, priority := range []int32{0, -7} {
			b := netnstest.Open(t, ns, func() (*Backend, error) {
				return New(Options{Capture: capture, Identity: backends.Identity{Priority: priority}})
			})
			if err := b.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(&proxy.Node{})); err != nil {
				t.Fatal(err)
			}
			moved := map[string]nfnetlink.BaseChain{}
			for name, base := range want {
				base.Priority += priority
				moved[name] = base
			}
			if diff := cmp.Diff(moved, basesOf(t, b)); diff != "" {
				t.Errorf("%v with priority %d (-want +got):\n%s", capture, priority, diff)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// basesOf gives the base chains of a backend's table.
func basesOf(t *testing.T, b *Backend) map[string]nfnetlink.BaseChain {
	t.Helper()
	conn := netnstest.Open(t, b.sockets.ns, nfnetlink.Open)
	var chains []nfnetlink.ChainInfo
	if err := conn.Chains(t.Context(), nfnetlink.Table{Family: nfnetlink.IPv6, Name: b.options.Identity.Name}, nfnetlink.Collect(&chains)); err != nil {
		t.Fatal(err)
	}
	bases := map[string]nfnetlink.BaseChain{}
	for i := range chains {
		if chains[i].Base.Type != "" {
			bases[chains[i].Name] = chains[i].Base
		}
	}
	return bases
}
