package allocator_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// config parses a range.
func config(t testing.TB, text string) allocator.Config {
	t.Helper()
	c, err := allocator.ParseConfig(text)
	testenv.NoError(t, err)
	return c
}

// poolOf makes a pool of one range, in memory.
func poolOf(t testing.TB, c allocator.Config) *allocator.Pool {
	t.Helper()
	p, err := allocator.NewPool(newMemory(), allocator.PoolOptions{Ranges: []allocator.Config{c}})
	testenv.NoError(t, err)
	return p
}

// allocateNext allocates any key of a pool's only range.
func allocateNext(t testing.TB, p *allocator.Pool) (allocator.Key, error) {
	kind := allocator.Port
	if prefix := p.Ranges()[0].Config.Prefix; prefix.IsValid() {
		kind = allocator.AddrKey(prefix.Addr()).Kind()
	}
	claims, err := p.Allocate(t.Context(), "me", next(kind))
	if err != nil {
		return allocator.Key{}, err
	}
	return claims[0].Key, nil
}

func bandOf(t testing.TB, c allocator.Config) uint64 {
	t.Helper()
	return poolOf(t, c).Ranges()[0].Stats.BandSize
}

func mustKey(t testing.TB, text string) allocator.Key {
	t.Helper()
	k, err := allocator.ParseKey(text)
	testenv.NoError(t, err)
	return k
}

// capacity is the number of keys of a prefix, and of its lower band.
type capacity struct{ size, band uint64 }

func ipv4Capacities() map[int]capacity {
	want := map[int]capacity{
		32: {0, 0}, 31: {0, 0}, 30: {2, 0}, 29: {6, 0}, 28: {14, 0}, 27: {30, 16},
		26: {62, 16}, 25: {126, 16}, 24: {254, 16}, 23: {510, 32}, 22: {1022, 64}, 21: {2046, 128},
	}
	for bits := 20; bits >= 2; bits-- {
		want[bits] = capacity{1<<(32-bits) - 2, 256}
	}
	return want
}

func ipv6Capacities() map[int]capacity {
	want := map[int]capacity{
		128: {0, 0}, 127: {1, 0}, 126: {3, 0}, 125: {7, 0}, 124: {15, 0}, 123: {31, 16}, 122: {63, 16},
		121: {127, 16}, 120: {255, 16}, 119: {511, 32}, 118: {1023, 64}, 117: {2047, 128},
	}
	for bits := 116; bits >= 64; bits-- {
		want[bits] = capacity{uint64(1)<<(128-bits) - 1, 256}
	}
	return want
}

func TestCapacityOfEveryPrefix(t *testing.T) {
	check := func(base string, bits int, want capacity) {
		t.Helper()
		c := allocator.Config{Prefix: netip.PrefixFrom(netip.MustParseAddr(base), bits)}
		r, err := allocator.NewRange(c)
		if err != nil {
			t.Errorf("%v: %v", c, err)
			return
		}
		got := capacity{r.Size(), bandOf(t, c)}
		if got != want {
			t.Errorf("%v: got %+v, want %+v", c, got, want)
		}
		checkEdges(t, r, c, want.size)
	}
	for bits, want := range ipv4Capacities() {
		check("10.0.0.0", bits, want)
	}
	for bits, want := range ipv6Capacities() {
		check("fd00:10:96::", bits, want)
	}
}

// checkEdges checks that the network address is left out and offset 0 is the
// address after it, that the last address belongs to the range, and that the one after
// it, such as the broadcast address, does not.
func checkEdges(t *testing.T, r *allocator.Range, c allocator.Config, size uint64) {
	t.Helper()
	network := c.Prefix.Masked().Addr()
	if _, ok := r.Offset(allocator.AddrKey(network)); ok {
		t.Errorf("%v: the network address can be allocated, want not", c)
	}
	if size == 0 {
		if _, err := poolOf(t, c).Allocate(t.Context(), "me", allocator.Request{Kind: allocator.AddrKey(network).Kind()}); !errors.Is(err, allocator.ErrFull) {
			t.Errorf("%v without addresses: got error %v, want %v", c, err, allocator.ErrFull)
		}
		return
	}
	if got, want := r.Key(0), allocator.AddrKey(network.Next()); got != want {
		t.Errorf("%v: first address: got %v, want %v", c, got, want)
	}
	last := r.Key(size - 1)
	if i, ok := r.Offset(last); !ok || i != size-1 {
		t.Errorf("%v: offset of the last address %v: got %d, %t, want %d", c, last, i, ok, size-1)
	}
	if beyond := allocator.AddrKey(last.Addr().Next()); beyond.Addr().IsValid() {
		if _, ok := r.Offset(beyond); ok {
			t.Errorf("%v: %v, which is after the last address, can be allocated, want not", c, beyond)
		}
	}
	if got := r.Key(size); got != (allocator.Key{}) {
		t.Errorf("%v: key after the last one: got %v, want none", c, got)
	}
}

func TestTooLargeIsAnError(t *testing.T) {
	for _, text := range []string{"0.0.0.0/0", "0.0.0.0/1", "fd00::/63", "fd00::/48", "::/0"} {
		c := allocator.Config{Prefix: netip.MustParsePrefix(text)}
		_, err := allocator.NewRange(c)
		var bad *allocator.RangeError
		if !errors.Is(err, allocator.ErrTooLarge) || !errors.As(err, &bad) || bad.Range != text {
			t.Errorf("%s: got error %v, want %v that names the range", text, err, allocator.ErrTooLarge)
		}
	}
}

// checkBandOrder fills a range, of whose lower band a request names a key, and checks that the other
// keys of the band are last.
func checkBandOrder(t *testing.T, c allocator.Config) {
	t.Helper()
	r, err := allocator.NewRange(c)
	testenv.NoError(t, err)
	p := poolOf(t, c)
	s := p.Ranges()[0].Stats
	left := s.Size
	if s.BandSize > 0 {
		mustReserve(t, p, "dns", allocator.Request{Key: r.Key(s.BandSize - 1)})
		left--
	}
	for n := range left {
		key, err := allocateNext(t, p)
		if err != nil {
			t.Fatalf("allocation %d of %d: %v", n+1, s.Size, err)
		}
		i, _ := r.Offset(key)
		if isLow, late := i < s.BandSize, n >= s.Size-s.BandSize; isLow != late {
			t.Fatalf("allocation %d of %d: got %v, in the lower band: %t, want %t", n+1, s.Size, key, isLow, late)
		}
	}
	if key, err := allocateNext(t, p); !errors.Is(err, allocator.ErrFull) {
		t.Errorf("a full range: got %v, error %v, want %v", key, err, allocator.ErrFull)
	}
}

func TestBandOrderOfEverySmallPrefix(t *testing.T) {
	for bits := 30; bits >= 18; bits-- {
		checkBandOrder(t, config(t, fmt.Sprintf("10.96.0.0/%d", bits)))
	}
	for bits := 127; bits >= 114; bits-- {
		checkBandOrder(t, config(t, fmt.Sprintf("fd00::/%d", bits)))
	}
	checkBandOrder(t, config(t, "30000-32767"))
}

func TestBandOfPorts(t *testing.T) {
	for size, want := range map[uint16]uint64{10: 0, 16: 0, 17: 16, 128: 16, 2048: 64, 2768: 86, 4096: 128, 8192: 128} {
		testenv.Same(t, want, bandOf(t, allocator.Config{FirstPort: 30000, LastPort: 30000 + size - 1}), "band of %d ports", size)
	}
}
