package allocator_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestExclusions(t *testing.T) {
	both := func(c *allocator.Config) {
		c.Exclude = []allocator.Block{
			allocator.PrefixBlock(netip.MustParsePrefix("10.96.0.0/29")),      // .0-.7, of which .0 is no address
			allocator.PrefixBlock(netip.MustParsePrefix("10.96.0.4/30")),      // within the first
			allocator.PrefixBlock(netip.MustParsePrefix("10.96.0.32/27")),     // .32-.63
			{First: mustKey(t, "10.96.0.40"), Last: mustKey(t, "10.96.0.41")}, // within, and ends earlier
			allocator.PrefixBlock(netip.MustParsePrefix("fd00::1:0/112")),
			{First: mustKey(t, "9.0.0.0"), Last: mustKey(t, "9.255.255.255")},
			{First: mustKey(t, "10.96.0.250"), Last: mustKey(t, "10.96.2.1")}, // .250-.254
		}
	}
	r := newRange(t, "10.96.0.0/24", both)
	if got, want := r.Stats(), (allocator.Stats{Size: 254 - 7 - 32 - 5, BandSize: 16 - 7}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, text := range []string{"10.96.0.1", "10.96.0.7", "10.96.0.32", "10.96.0.63", "10.96.0.254", "10.96.0.0", "10.96.0.255"} {
		if err := r.Allocate("me", mustKey(t, text)); !errors.Is(err, allocator.ErrNotInRange) {
			t.Errorf("%s: got error %v, want %v", text, err, allocator.ErrNotInRange)
		}
	}
	checkBandOrder(t, newRange(t, "fd00::/110", both))
	six := newRange(t, "fd00::/64", both)
	if got, want := six.Stats().Size, ^uint64(0)-1<<16; got != want {
		t.Errorf("size of the /64: got %d, want %d", got, want)
	}
}

// TestNearlyAllExcluded excludes all but two keys of a range that has no bitmap.
func TestNearlyAllExcluded(t *testing.T) {
	r := newRange(t, "fd00::/64", func(c *allocator.Config) {
		c.Exclude = []allocator.Block{
			{First: mustKey(t, "fd00::"), Last: mustKey(t, "fd00::8000")},
			{First: mustKey(t, "fd00::8003"), Last: mustKey(t, "fd00::ffff:ffff:ffff:ffff")},
		}
	})
	keys, err := r.AllocateN("me", 2)
	testenv.NoError(t, err)
	slices.SortFunc(keys, allocator.Key.Compare)
	if got, want := fmt.Sprint(keys), "[fd00::8001 fd00::8002]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, err := r.AllocateNext("me"); !errors.Is(err, allocator.ErrFull) {
		t.Errorf("got error %v, want %v", err, allocator.ErrFull)
	}
}

func TestErrorsNameTheirObjects(t *testing.T) {
	r := newRange(t, "10.96.0.0/30")
	testenv.NoError(t, r.Allocate("default/web", mustKey(t, "10.96.0.1")))
	if err := r.Allocate("default/db", mustKey(t, "::ffff:10.96.0.2")); err != nil {
		t.Fatalf("an IPv4-mapped address: %v", err)
	}
	_, full := r.AllocateNext("me")
	_, fullN := r.AllocateN("me", 1)
	_, fullMany := r.AllocateN("me", 2)
	draining := newRange(t, "10.97.0.0/24", func(c *allocator.Config) { c.Draining = true })
	_, drained := draining.AllocateN("me", 1)
	pool, err := allocator.NewPool(allocator.NewMemory(allocator.State{}, nil), allocator.PoolOptions{})
	testenv.NoError(t, err)
	_, noRange := pool.Allocate(t.Context(), "me", allocator.Request{Kind: allocator.IPv6})
	_, noPorts := pool.Allocate(t.Context(), "me", allocator.Request{Key: mustKey(t, "80")})
	for _, c := range []struct {
		err    error
		reason allocator.Reason
		text   string
	}{
		{r.Allocate("me", mustKey(t, "10.96.0.1")), allocator.ErrAllocated, `10.96.0.1 is already allocated to "default/web"`},
		{r.Allocate("default/web", mustKey(t, "10.96.0.1")), allocator.ErrAllocated, `10.96.0.1 is already allocated to "default/web"`},
		{r.Allocate("me", mustKey(t, "10.96.0.3")), allocator.ErrNotInRange, "10.96.0.3 is not in range 10.96.0.0/30, or excluded from it"},
		{r.Allocate("me", mustKey(t, "fd00::1")), allocator.ErrNotInRange, "fd00::1 is not in range 10.96.0.0/30, or excluded from it"},
		{r.Allocate("me", mustKey(t, "80")), allocator.ErrNotInRange, "80 is not in range 10.96.0.0/30, or excluded from it"},
		{r.Allocate("", mustKey(t, "10.96.0.1")), allocator.ErrInvalid, "invalid owner: it has no name"},
		{r.Release("me", mustKey(t, "10.96.0.2")), allocator.ErrNotOwner, `10.96.0.2 is held by "default/db"`},
		{full, allocator.ErrFull, "range 10.96.0.0/30 is full"},
		{fullN, allocator.ErrFull, "range 10.96.0.0/30 is full"},
		{fullMany, allocator.ErrFull, "range 10.96.0.0/30 has fewer than 2 free keys"},
		{draining.Allocate("me", mustKey(t, "10.97.0.9")), allocator.ErrNotInRange, "10.97.0.9 is not in range 10.97.0.0/24, or excluded from it"},
		{drained, allocator.ErrFull, "range 10.97.0.0/24 is full"},
		{noRange, allocator.ErrFull, "there is no IPv6 range to allocate from"},
		{noPorts, allocator.ErrNotInRange, "80 cannot be allocated: there is no port range to allocate from"},
	} {
		if !errors.Is(c.err, c.reason) || c.err.Error() != c.text {
			t.Errorf("got error %q, want %q of reason %q", c.err, c.text, c.reason)
		}
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
		"backward block":    {Prefix: six, Exclude: []allocator.Block{{First: mustKey(t, "::2"), Last: mustKey(t, "::1")}}},
		"block of two sets": {Prefix: six, Exclude: []allocator.Block{{First: mustKey(t, "10.0.0.1"), Last: mustKey(t, "::1")}}},
		"empty block":       {Prefix: six, Exclude: []allocator.Block{{}}},
	} {
		if r, err := allocator.NewRange(c); !errors.Is(err, allocator.ErrInvalid) {
			t.Errorf("%s: got %v, error %v, want %v", name, r, err, allocator.ErrInvalid)
		}
	}
	for _, text := range []string{"", "10.0.0.0", "10.0.0.0/33", "80", "a-b", "1-65536"} {
		if c, err := allocator.ParseConfig(text); !errors.Is(err, allocator.ErrInvalid) {
			t.Errorf("ParseConfig(%q): got %v, error %v, want %v", text, c, err, allocator.ErrInvalid)
		}
	}
	if got := (allocator.Config{Prefix: netip.MustParsePrefix("10.96.3.4/16")}).String(); got != "10.96.0.0/16" {
		t.Errorf("got %s, want the canonical 10.96.0.0/16", got)
	}
}

// TestAllHoldsNoLock changes a range while it iterates over All.
func TestAllHoldsNoLock(t *testing.T) {
	for _, text := range []string{"10.96.0.0/20", "fd00::/64"} {
		r := newRange(t, text)
		stays, err := r.AllocateN("stays", 1000)
		testenv.NoError(t, err)
		var seen []allocator.Key
		for key, owner := range r.All() {
			if owner == "stays" {
				seen = append(seen, key)
			}
			if len(seen)%10 == 0 {
				if next, err := r.AllocateNext("new"); err != nil {
					t.Fatal(err)
				} else if err := r.Release("new", next); err != nil {
					t.Fatal(err)
				}
			}
		}
		slices.SortFunc(stays, allocator.Key.Compare)
		if diff := cmp.Diff(fmt.Sprint(stays), fmt.Sprint(seen)); diff != "" {
			t.Errorf("%s: keys that were allocated throughout (-want +got):\n%s", text, diff)
		}
	}
}

func TestAllCanStop(t *testing.T) {
	r := newRange(t, "10.96.0.0/24")
	if _, err := r.AllocateN("me", 5); err != nil {
		t.Fatal(err)
	}
	count := 0
	for range r.All() {
		if count++; count == 2 {
			break
		}
	}
	if count != 2 {
		t.Errorf("keys before the break: got %d, want 2", count)
	}
}

// TestChoiceIsSpread checks that no part of a half-full range is preferred.
func TestChoiceIsSpread(t *testing.T) {
	const rounds, buckets = 20_000, 8
	r := newRange(t, "10.96.0.0/20", func(c *allocator.Config) { c.SharedPool = true })
	if _, err := r.AllocateN("filler", 2047); err != nil {
		t.Fatal(err)
	}
	var got [buckets]int
	free := [buckets]int{}
	for i := range r.Stats().Size {
		if _, held := r.Lookup(r.Key(i)); !held {
			free[i*buckets/r.Stats().Size]++
		}
	}
	for range rounds {
		key, err := r.AllocateNext("me")
		testenv.NoError(t, err)
		i, _ := r.Offset(key)
		got[i*buckets/r.Stats().Size]++
		testenv.NoError(t, r.Release("me", key))
	}
	for i, n := range got {
		if want := rounds * free[i] / 2047; n < want*8/10 || n > want*12/10 {
			t.Errorf("part %d with %d free addresses was chosen %d times, want about %d", i, free[i], n, want)
		}
	}
}
