package allocator_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestErrorsNameTheirObjects(t *testing.T) {
	p := newPool(t, newMemory(), "10.96.0.0/30", "10.97.0.0/24!")
	mustReserve(t, p, "default/web", exactly(t, "10.96.0.1"))
	mustReserve(t, p, "default/db", exactly(t, "::ffff:10.96.0.2"))
	for _, c := range []struct {
		owner   allocator.Owner
		request allocator.Request
		reason  allocator.Reason
		text    string
	}{
		{"me", exactly(t, "10.96.0.1"), allocator.ErrAllocated, `10.96.0.1 is already allocated to "default/web"`},
		{"default/web", exactly(t, "10.96.0.1"), allocator.ErrAllocated, `10.96.0.1 is already allocated to "default/web"`},
		{"me", exactly(t, "10.96.0.3"), allocator.ErrNotInRange, "10.96.0.3 cannot be allocated from range 10.96.0.0/30"},
		{"me", exactly(t, "10.97.0.9"), allocator.ErrNotInRange, "10.97.0.9 cannot be allocated from range 10.96.0.0/30"},
		{"me", exactly(t, "fd00::1"), allocator.ErrNotInRange, "fd00::1 cannot be allocated: there is no IPv6 range to allocate from"},
		{"me", exactly(t, "80"), allocator.ErrNotInRange, "80 cannot be allocated: there is no port range to allocate from"},
		{"", exactly(t, "10.96.0.1"), allocator.ErrInvalid, "invalid owner: it has no name"},
		{"me", next(allocator.IPv4), allocator.ErrFull, "range 10.96.0.0/30 is full"},
		{"me", allocator.Request{Kind: allocator.IPv4, Count: 2}, allocator.ErrFull, "range 10.96.0.0/30 has fewer than 2 free keys"},
		{"me", next(allocator.IPv6), allocator.ErrFull, "there is no IPv6 range to allocate from"},
	} {
		if _, err := p.Allocate(t.Context(), c.owner, c.request); !errors.Is(err, c.reason) || err.Error() != c.text {
			t.Errorf("got error %q, want %q of reason %q", err, c.text, c.reason)
		}
	}
	err := p.Release(t.Context(), allocator.Claim{Key: mustKey(t, "10.96.0.2"), Owner: "me"})
	if want := `10.96.0.2 is held by "default/db"`; !errors.Is(err, allocator.ErrNotOwner) || err.Error() != want {
		t.Errorf("got error %q, want %q of reason %q", err, want, allocator.ErrNotOwner)
	}
}

// A range by its ends has all addresses from the first to the last, across any boundary.
func TestRangesByTheirEnds(t *testing.T) {
	for _, c := range []struct {
		text    string
		size    uint64
		in, out []string
	}{
		{"10.0.0.10-10.0.0.20", 11, []string{"10.0.0.10", "10.0.0.20"}, []string{"10.0.0.9", "10.0.0.21", "::1"}},
		{"10.0.0.255-10.0.1.0", 2, []string{"10.0.0.255", "10.0.1.0"}, []string{"10.0.0.254", "10.0.1.1"}},
		{"fd00::ffff:ffff:ffff:ffff-fd00:0:0:1::1", 3, []string{"fd00:0:0:1::"}, []string{"fd00:0:0:1::2"}},
		{"192.0.2.1-192.0.2.1", 1, []string{"192.0.2.1"}, []string{"192.0.2.0", "192.0.2.2"}},
	} {
		r, err := allocator.NewRange(config(t, c.text))
		testenv.NoError(t, err)
		if r.String() != c.text || r.Size() != c.size {
			t.Errorf("%s: got %s with %d keys, want %d", c.text, r, r.Size(), c.size)
		}
		for i, text := range append(slices.Clone(c.in), c.out...) {
			offset, is := r.Offset(mustKey(t, text))
			if want := i < len(c.in); is != want || is && r.Key(offset).String() != text {
				t.Errorf("%s: %s is in range: got %t, want %t and the same key", c.text, text, is, want)
			}
		}
	}
	huge := allocator.Config{Addresses: allocator.Block{First: mustKey(t, "fd00::"), Last: mustKey(t, "fd01::")}}
	if _, err := allocator.NewRange(huge); !errors.Is(err, allocator.ErrTooLarge) {
		t.Errorf("%v: got error %v, want %v", huge, err, allocator.ErrTooLarge)
	}
}

func TestInvalidConfigs(t *testing.T) {
	six := netip.MustParsePrefix("fd00::/64")
	for name, c := range map[string]allocator.Config{
		"nothing":           {},
		"both":              {Prefix: six, FirstPort: 1, LastPort: 2},
		"ports backwards":   {FirstPort: 9, LastPort: 8},
		"port 0":            {LastPort: 8},
		"IPv4 in IPv6":      {Prefix: netip.MustParsePrefix("::ffff:10.0.0.0/112")},
		"mapped part":       {Prefix: netip.MustParsePrefix("::/64")},
		"mapped ends":       {Addresses: allocator.Block{First: mustKey(t, "::fffe:ffff:ffff"), Last: mustKey(t, "::1:0:0:0")}},
		"ends backwards":    {Addresses: allocator.Block{First: mustKey(t, "::2"), Last: mustKey(t, "::1")}},
		"one end":           {Addresses: allocator.Block{First: mustKey(t, "::2")}},
		"ends of two kinds": {Addresses: allocator.Block{First: mustKey(t, "10.0.0.1"), Last: mustKey(t, "::1")}},
		"ends of ports":     {Addresses: allocator.Block{First: mustKey(t, "80"), Last: mustKey(t, "81")}},
		"prefix and ends":   {Prefix: six, Addresses: allocator.Block{First: mustKey(t, "::1"), Last: mustKey(t, "::1")}},
	} {
		if r, err := allocator.NewRange(c); !errors.Is(err, allocator.ErrInvalid) {
			t.Errorf("%s: got %v, error %v, want %v", name, r, err, allocator.ErrInvalid)
		}
	}
	for _, text := range []string{"", "10.0.0.0", "10.0.0.0/33", "80", "a-b", "1-65536", "10.0.0.1-", "10.0.0.1-9", "fe80::1%a-fe80::2"} {
		if c, err := allocator.ParseConfig(text); !errors.Is(err, allocator.ErrInvalid) {
			t.Errorf("ParseConfig(%q): got %v, error %v, want %v", text, c, err, allocator.ErrInvalid)
		}
	}
	if got := (allocator.Config{Prefix: netip.MustParsePrefix("10.96.3.4/16")}).String(); got != "10.96.0.0/16" {
		t.Errorf("got %s, want the canonical 10.96.0.0/16", got)
	}
}

// TestChoiceIsSpread checks that no part of a half-full range is preferred.
func TestChoiceIsSpread(t *testing.T) {
	const rounds, buckets, band = 20_000, 8, 256
	c := config(t, "10.96.0.0/20")
	r, err := allocator.NewRange(c)
	testenv.NoError(t, err)
	p := poolOf(t, c)
	mustReserve(t, p, "filler", allocator.Request{Kind: allocator.IPv4, Count: 2047})
	var got, free [buckets]int
	part := func(i uint64) uint64 { return (i - band) * buckets / (r.Size() - band) }
	for i := uint64(band); i < r.Size(); i++ {
		if _, held := p.Lookup(r.Key(i)); !held {
			free[part(i)]++
		}
	}
	for range rounds {
		claims := mustReserve(t, p, "me", next(allocator.IPv4))
		i, _ := r.Offset(claims[0].Key)
		got[part(i)]++
		mustRelease(t, p, claims...)
	}
	for i, n := range got {
		if want := rounds * free[i] / (4094 - band - 2047); n < want*8/10 || n > want*12/10 {
			t.Errorf("part %d with %d free addresses was chosen %d times, want about %d", i, free[i], n, want)
		}
	}
}
